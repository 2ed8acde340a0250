// All groups. The server searches and sorts them and returns the visible rows.
import { html, useState } from "../lib/dom.js";
import { url, useLive } from "../lib/api.js";
import { useQuery } from "../lib/router.js";
import { count, plural } from "../lib/format.js";
import { Badge, Choice, Heading, Loading, Problem, Search, Table } from "../lib/parts.js";

export const STATE_KIND = { Stable: "good", Empty: "plain", Dead: "bad", PreparingRebalance: "warn", CompletingRebalance: "warn", Assigning: "warn", Reconciling: "warn" };

const columns = [
  { id: "group", label: "Group", sort: "group", wide: true, render: (row) => html`<a href=${url("/groups", [row.group])}>${row.group || html`<em>(empty name)</em>`}</a>` },
  { id: "state", label: "State", sort: "state", render: (row) => html`<${Badge} kind=${STATE_KIND[row.state] ?? "plain"}>${row.state || "unknown"}<//>` },
  { id: "type", label: "Type", sort: "type", render: (row) => row.type },
  { id: "members", label: "Members", number: true, render: (row) => count(row.members) },
  { id: "topics", label: "Topics", number: true, render: (row) => count(row.topics) },
  { id: "lag", label: "Lag", sort: "lag", number: true, render: (row) => count(row.lag) },
  { id: "coordinator", label: "Coordinator", number: true, render: (row) => row.coordinator },
];

function View() {
  const [query, set] = useQuery({ search: "", state: "", sort: "group", descending: "" });
  const [seen, setSeen] = useState({ start: 0, count: 100 });
  const { data, error } = useLive(url("/api/groups", [], { ...query, ...seen }));
  return html`<${Heading} title="Groups" />
    <div class="tools">
      <${Search} label="Search" value=${query.search} placeholder="Part of a name" onChange=${(search) => set({ search })} />
      <${Choice} label="State" value=${query.state} options=${[["", "any"], ...(data?.states ?? (query.state ? [query.state] : []))]} onChange=${(state) => set({ state })} />
      <span class="quiet" role="status">${data ? plural(data.total, "group") : ""}</span>
    </div>
    <${Problem} error=${error} />
    ${data && data.lagKnown < data.lagOf && html`<p class="notice">The lag of ${count(data.lagKnown)} of ${plural(data.lagOf, "group")} is known so far: the console reads a few groups at a time.</p>`}
    ${data
      ? html`<${Table}
          label="Groups"
          columns=${columns}
          rows=${data.groups}
          total=${data.total}
          start=${data.start}
          sort=${query.sort}
          descending=${!!query.descending}
          onSort=${(sort, down) => set({ sort, descending: down ? "1" : "" })}
          onWindow=${(start, rows) => setSeen({ start, count: rows })}
          keyOf=${(row) => row.group}
          empty=${query.search || query.state ? "No group matches." : "There are no groups yet."}
        />`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/groups", title: "Groups", nav: { label: "Groups" }, View };
