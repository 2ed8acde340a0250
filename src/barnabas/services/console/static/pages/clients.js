// Clients that push their metrics: their latencies beside the broker's, and why they are slow.
import { html, useState } from "../lib/dom.js";
import { url, useLive } from "../lib/api.js";
import { useQuery } from "../lib/router.js";
import { count, duration, plural } from "../lib/format.js";
import { Badge, Figures, Heading, Loading, Problem, Search, Table } from "../lib/parts.js";

const ms = (value) => (value === null || value === undefined ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`);
const state = (row) => (row.ended ? html`<${Badge}>ended<//>` : row.reasons.length ? html`<${Badge} kind="warn">slow<//>` : html`<${Badge} kind="good">fine<//>`);

const columns = [
  { id: "client", label: "Client", wide: true, render: (row) => html`<a href=${url("/clients", [row.instance])}>${row.client || row.instance}</a>` },
  { id: "state", label: "State", render: state },
  { id: "software", label: "Software", render: (row) => `${row.software} ${row.version}` },
  { id: "address", label: "Address", render: (row) => row.address },
  { id: "request", label: "Its requests", number: true, render: (row) => ms(row.requestMs) },
  { id: "broker", label: "Of it the broker", number: true, render: (row) => ms(row.brokerMs) },
  { id: "reasons", label: "Why", wide: true, render: (row) => row.reasons.join("; ") },
];

const HOW = "barnabas client-metrics --alter --name all --metrics '*'";

function View() {
  const [query, set] = useQuery({ search: "" });
  const [seen, setSeen] = useState({ start: 0, count: 100 });
  const { data, error } = useLive(url("/api/clients", [], { ...query, ...seen }));
  return html`<${Heading} title="Clients" />
    <div class="tools">
      <${Search} label="Search" value=${query.search} placeholder="Part of a name or an address" onChange=${(search) => set({ search })} />
      <span class="quiet" role="status">${data ? `${plural(data.total, "client")}, ${count(data.slow)} slow` : ""}</span>
    </div>
    <${Problem} error=${error} />
    ${data && !data.supported && html`<p class="notice">This cluster does not show the metrics of clients: that needs barnabas brokers.</p>`}
    ${data?.supported && !data.subscriptions.length && html`<p class="notice">Clients push nothing until a subscription asks them: <code>${HOW}</code></p>`}
    ${data
      ? html`<${Table}
          label="Clients"
          columns=${columns}
          rows=${data.clients}
          total=${data.total}
          start=${data.start}
          onWindow=${(start, rows) => setSeen({ start, count: rows })}
          keyOf=${(row) => row.instance}
          empty=${query.search ? "No client matches." : "No client pushes metrics."}
        />`
      : !error && html`<${Loading} />`}`;
}

function Detail({ instance }) {
  const { data, error } = useLive(url("/api/clients", [instance]));
  return html`<${Heading} title=${data ? data.client || data.instance : "Client"} crumbs=${[["Clients", "/clients"]]} />
    <${Problem} error=${error} />
    ${data
      ? html`<${Figures}
            items=${[
              ["Its requests", ms(data.requestMs)],
              [`Of it broker ${data.broker}`, ms(data.brokerMs)],
              ["Of that waiting for replicas", ms(data.brokerWaitingMs)],
              ["Last push", `${duration(data.pushedMsAgo)} ago`],
            ]}
          />
          <p>${state(data)} ${data.reasons.join("; ")}</p>
          <p class="quiet">${data.software} ${data.version} at ${data.address}, ${data.principal}</p>
          <${Table}
            label="Metrics"
            columns=${[
              { id: "name", label: "Metric", wide: true, render: (row) => row.name },
              { id: "labels", label: "Labels", wide: true, render: (row) => Object.entries(row.labels).map(([key, value]) => `${key}=${value}`).join(", ") },
              { id: "value", label: "Value", number: true, render: (row) => row.value },
            ]}
            rows=${data.metrics}
            keyOf=${(row) => row.name + JSON.stringify(row.labels)}
            empty="It has pushed no metrics."
          />`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/clients", title: "Clients", nav: { label: "Clients" }, View };
export const clientPage = { path: "/clients/:instance", title: "Client", View: Detail };
