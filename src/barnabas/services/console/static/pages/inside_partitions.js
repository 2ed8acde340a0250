// Choice of a partition for its internal view.
import { html, useState } from "../lib/dom.js";
import { url, useLive } from "../lib/api.js";
import { useQuery } from "../lib/router.js";
import { count, plural } from "../lib/format.js";
import { Badge, Check, Heading, Loading, Problem, Search, Table } from "../lib/parts.js";
import { NoInside, Silent, Term } from "../lib/inside.js";

function Partitions({ topic }) {
  const { data, error } = useLive(url("/api/topics", [topic]));
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  return html`<ul class="cells" aria-label=${`Partitions of ${topic}`}>
    ${data.partitionList.map((each) => {
      const behind = each.replicas.length - each.isr.length;
      const state = each.leader < 0 ? "bad" : behind ? "warn" : "good";
      return html`<li key=${each.partition}>
        <a class=${`cell ${state}`} href=${url("/inside/partitions", [topic, each.partition])}><strong>${each.partition}</strong> <span>${each.leader < 0 ? "no leader" : `leader ${each.leader}`}${behind > 0 && `, ${behind} behind`}</span></a>
      </li>`;
    })}
  </ul>`;
}

function View() {
  const [query, set] = useQuery({ search: "", internal: "", topic: "" });
  const [seen, setSeen] = useState({ start: 0, count: 100 });
  const { data, error } = useLive(url("/api/topics", [], { search: query.search, internal: query.internal, ...seen }));
  const sources = useLive("/api/inside");
  return html`<${Heading} title="Partitions: internal view" />
    <p class="quiet">Choose a topic, then a partition: its replicas side by side, with <${Term} to="the-high-watermark">high watermark<//>, <${Term} to="leader-epochs">leader epochs<//> and the lag of each follower, as they move.</p>
    ${sources.error || (sources.data && !sources.data.isAvailable) ? html`<${NoInside} error=${sources.error} />` : null}
    <${Silent} rows=${sources.data?.brokers} />
    <div class="tools">
      <${Search} label="Search" value=${query.search} placeholder="Part of a topic's name" onChange=${(search) => set({ search })} />
      <${Check} label="Internal topics" checked=${!!query.internal} onChange=${(on) => set({ internal: on ? "1" : "" })} />
      <span class="quiet" role="status">${data ? plural(data.total, "topic") : ""}</span>
    </div>
    <${Problem} error=${error} />
    ${query.topic && html`<section class="panel"><h2>${query.topic}</h2><${Partitions} topic=${query.topic} /></section>`}
    ${data
      ? html`<${Table}
          label="Topics"
          rows=${data.topics}
          total=${data.total}
          start=${data.start}
          onWindow=${(start, rows) => setSeen({ start, count: rows })}
          keyOf=${(row) => row.name}
          empty=${query.search ? "No topic has this in its name." : "There are no topics yet."}
          columns=${[
            {
              id: "name",
              label: "Topic",
              wide: true,
              render: (row) =>
                row.partitions === 1
                  ? html`<a href=${url("/inside/partitions", [row.name, 0])}>${row.name}</a>`
                  : html`<button type="button" class="link" aria-expanded=${query.topic === row.name ? "true" : "false"} onClick=${() => set({ topic: query.topic === row.name ? "" : row.name })}>${row.name}</button>`,
            },
            { id: "partitions", label: "Partitions", number: true, render: (row) => count(row.partitions) },
            { id: "replicas", label: "Replicas", number: true, render: (row) => count(row.replicas) },
            {
              id: "health",
              label: "Health",
              render: (row) =>
                row.offline
                  ? html`<${Badge} kind="bad">${count(row.offline)} offline<//>`
                  : row.underReplicated
                    ? html`<${Badge} kind="warn">${count(row.underReplicated)} under-replicated<//>`
                    : html`<${Badge} kind="good">in sync<//>`,
            },
          ]}
        />`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/inside/partitions", title: "Partitions", nav: { label: "Partitions", group: "Inside" }, View };
