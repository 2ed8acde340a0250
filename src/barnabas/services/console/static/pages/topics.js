// All topics. The server searches and sorts them and returns the visible rows.
import { html, useState } from "../lib/dom.js";
import { url, useLive } from "../lib/api.js";
import { useQuery } from "../lib/router.js";
import { useAbout } from "../lib/about.js";
import { CreateTopic } from "./topic_changes.js";
import { count, plural, rate, size } from "../lib/format.js";
import { Badge, Check, Heading, Loading, Problem, Search, Table } from "../lib/parts.js";

const columns = [
  {
    id: "name",
    label: "Topic",
    sort: "name",
    wide: true,
    render: (row) => html`<a href=${url("/topics", [row.name])}>${row.name}</a>${row.internal && html` <${Badge}>internal<//>`}`,
  },
  { id: "partitions", label: "Partitions", sort: "partitions", number: true, render: (row) => count(row.partitions) },
  { id: "replicas", label: "Replicas", sort: "replicas", number: true, render: (row) => count(row.replicas) },
  { id: "messages", label: "Records", sort: "messages", number: true, render: (row) => count(row.messages) },
  { id: "rate", label: "Rate", sort: "rate", number: true, render: (row) => rate(row.rate) },
  { id: "lag", label: "Lag", sort: "lag", number: true, render: (row) => count(row.lag) },
  { id: "size", label: "On disk", sort: "size", number: true, render: (row) => size(row.size) },
  {
    id: "health",
    label: "Health",
    render: (row) =>
      row.offline
        ? html`<${Badge} kind="bad">${plural(row.offline, "partition")} offline<//>`
        : row.underReplicated
          ? html`<${Badge} kind="warn">${count(row.underReplicated)} under-replicated<//>`
          : html`<${Badge} kind="good">in sync<//>`,
  },
];

function View() {
  const [query, set] = useQuery({ search: "", sort: "name", descending: "", internal: "" });
  const [seen, setSeen] = useState({ start: 0, count: 100 });
  const { data, error } = useLive(url("/api/topics", [], { ...query, ...seen }));
  const [isCreating, setCreating] = useState(false);
  const about = useAbout();
  return html`<${Heading} title="Topics">${about.readWrite && html`<button type="button" class="primary" onClick=${() => setCreating(true)}>Create topic…</button>`}<//>
    ${isCreating && html`<${CreateTopic} onClose=${() => setCreating(false)} />`}
    <div class="tools">
      <${Search} label="Search" value=${query.search} placeholder="Part of a name" onChange=${(search) => set({ search })} />
      <${Check} label="Internal topics" checked=${!!query.internal} onChange=${(on) => set({ internal: on ? "1" : "" })} />
      <span class="quiet" role="status">${data ? plural(data.total, "topic") : ""}</span>
    </div>
    <${Problem} error=${error} />
    ${data
      ? html`<${Table}
          label="Topics"
          columns=${columns}
          rows=${data.topics}
          total=${data.total}
          start=${data.start}
          sort=${query.sort}
          descending=${!!query.descending}
          onSort=${(sort, down) => set({ sort, descending: down ? "1" : "" })}
          onWindow=${(start, rows) => setSeen({ start, count: rows })}
          keyOf=${(row) => row.name}
          empty=${query.search ? "No topic has this in its name." : "There are no topics yet."}
        />`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/topics", title: "Topics", nav: { label: "Topics" }, View };
