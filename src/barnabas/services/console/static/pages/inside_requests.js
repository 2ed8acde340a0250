// Requests in a broker: how long each stage took.
import { html } from "../lib/dom.js";
import { url, useLive } from "../lib/api.js";
import { useQuery } from "../lib/router.js";
import { count, size, time } from "../lib/format.js";
import { Choice, Heading, Loading, Table } from "../lib/parts.js";
import { BrokerChoice, NoInside, Silent, Term } from "../lib/inside.js";

export const STAGES = [
  ["queue_ms", "queue", "It waits until its connection may start it."],
  ["local_ms", "local", "The handler runs: it checks, reads, writes."],
  ["remote_ms", "remote", "It waits for replicas, data, or members of a group."],
  ["response_queue_ms", "response queue", "It waits for earlier answers on the same connection."],
  ["throttle_ms", "throttle", "After the answer, the broker reads nothing from a client that is over its quota."],
];

/** Brokers report whole milliseconds; averages get one more digit. */
export const ms = (value) => (Number.isInteger(value) || value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`);

/** Stages as one bar. `most`: the time of the whole width; without it, the bar fills the width. */
export function Stages({ row, most }) {
  const all = STAGES.reduce((sum, [stage]) => sum + (row[stage] ?? 0), 0);
  let at = 0;
  const label = STAGES.filter(([stage]) => row[stage] > 0).map(([stage, name]) => `${name} ${ms(row[stage])}`).join(", ");
  return html`<svg class="stages" role="img" aria-label=${label || "no time at all"} width="100%" height="18">
    ${STAGES.map(([stage, name], place) => {
      const width = all ? ((row[stage] ?? 0) / Math.max(most || all, 1e-9)) * 100 : 0;
      const from = at;
      at += width;
      return width > 0 ? html`<rect key=${stage} class=${`stage-${place}`} x=${`${from}%`} y="1" width=${`${Math.max(width, 0.3)}%`} height="16"><title>${name} ${ms(row[stage])}</title></rect>` : null;
    })}
  </svg>`;
}

export const Legend = () =>
  html`<ul class="legend">
    ${STAGES.map(([stage, name, what], place) => html`<li key=${stage} title=${what}><i class=${`stage-${place}`}></i>${name}</li>`)}
  </ul>`;

function averages(rows) {
  const groups = new Map();
  for (const row of rows) groups.set(row.api, [...(groups.get(row.api) ?? []), row]);
  return [...groups]
    .map(([api, those]) => {
      const mean = { api, count: those.length, worst: Math.max(...those.map((row) => row.total_ms)) };
      for (const [stage] of STAGES) mean[stage] = those.reduce((sum, row) => sum + row[stage], 0) / those.length;
      mean.total_ms = those.reduce((sum, row) => sum + row.total_ms, 0) / those.length;
      return mean;
    })
    .sort((a, b) => a.api.localeCompare(b.api));
}

function View() {
  const [query, set] = useQuery({ broker: "", api: "", order: "newest" });
  const { data, error } = useLive(url("/api/inside/requests", [], { broker: query.broker }));
  const answers = (data?.brokers ?? []).filter((each) => each.view);
  const everything = answers.flatMap((each) => Object.values(each.view.requests).flatMap((kept) => kept.map((row) => ({ ...row, broker: each.broker }))));
  const means = averages(everything);
  const rows = everything
    .filter((row) => !query.api || row.api === query.api)
    .sort(query.order === "slowest" ? (a, b) => b.total_ms - a.total_ms : (a, b) => b.at_ms - a.at_ms || b.sequence - a.sequence)
    .slice(0, 100);
  const most = Math.max(...rows.map((row) => row.total_ms + row.throttle_ms), 0.001);
  const stages = (wide) => ({ id: "stages", label: "Stages", render: (row) => html`<${Stages} row=${row} most=${wide(row)} />` });
  return html`<${Heading} title="Requests" />
    <p class="quiet">The last requests of each kind with their <${Term} to="the-stages-of-a-request">stages<//>. Brokers record them only while this page is open.</p>
    ${error && html`<${NoInside} error=${error} />`}
    <${Silent} rows=${data?.brokers} />
    ${data
      ? html`<div class="tools">
            <${BrokerChoice} value=${query.broker} onChange=${(broker) => set({ broker })} />
            <${Choice} label="Request" value=${query.api} options=${[["", "all"], ...means.map((mean) => mean.api)]} onChange=${(api) => set({ api })} />
            <${Choice} label="Order" value=${query.order} options=${["newest", "slowest"]} onChange=${(order) => set({ order })} />
          </div>
          <${Legend} />
          <h2>On average</h2>
          <${Table}
            label="Averages by request"
            rows=${means}
            keyOf=${(row) => row.api}
            empty="Nothing has come since you opened this page."
            columns=${[
              { id: "api", label: "Request", render: (row) => html`<button type="button" class="link" onClick=${() => set({ api: row.api })}>${row.api}</button>` },
              { id: "count", label: "Seen", number: true, render: (row) => count(row.count) },
              { id: "mean", label: "Mean", number: true, render: (row) => ms(row.total_ms) },
              { id: "worst", label: "Longest", number: true, render: (row) => ms(row.worst) },
              stages(() => 0),
            ]}
          />
          <h2>${query.order === "slowest" ? "The slowest" : "The newest"}</h2>
          <${Table}
            label="Requests"
            rows=${rows}
            keyOf=${(row) => `${row.broker}/${row.sequence}`}
            empty="Nothing has come since you opened this page."
            columns=${[
              { id: "at", label: "Answered", render: (row) => time(row.at_ms).slice(11) },
              { id: "api", label: "Request", render: (row) => html`${row.api} <span class="quiet">v${row.version}</span>` },
              { id: "broker", label: "Broker", number: true, render: (row) => row.broker },
              { id: "who", label: "Client", wide: true, render: (row) => html`${row.client_id || "(no name)"} <span class="quiet">${row.host}</span>` },
              { id: "bytes", label: "Size", number: true, render: (row) => size(row.request_bytes) },
              { id: "total", label: "Total", number: true, render: (row) => ms(row.total_ms) },
              stages(() => most),
            ]}
          />`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/inside/requests", title: "Requests", nav: { label: "Requests", group: "Inside" }, View };
