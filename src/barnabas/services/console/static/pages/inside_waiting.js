// The purgatory: waiting requests with their clients, conditions and times.
import { html } from "../lib/dom.js";
import { url, useLive } from "../lib/api.js";
import { useQuery } from "../lib/router.js";
import { count, duration } from "../lib/format.js";
import { Figures, Heading, Loading, Table } from "../lib/parts.js";
import { BrokerChoice, NoInside, Silent, Term } from "../lib/inside.js";

const SHOWN = 3;
const CONDITIONS = {
  "high watermark": ["the-high-watermark", "the high watermark to pass its records"],
  "log end": ["the-high-watermark", "new records, as a follower"],
  bytes: ["purgatory", "enough bytes to read"],
  "log start": ["log-start-and-log-end", "every replica to delete records"],
};

function partitionText(each) {
  const name = `${each.topic}-${each.partition}`;
  if (each.offset === undefined) return name;
  const now = each.high_watermark ?? each.low_watermark;
  return `${name}: ${count(now)} of ${count(each.offset)}`;
}

function What({ row }) {
  const [anchor, text] = CONDITIONS[row.waits_for.condition] ?? [null, row.waits_for.condition];
  const partitions = row.waits_for.partitions ?? [];
  const rest = (row.waits_for.count ?? 0) - Math.min(partitions.length, SHOWN);
  return html`${anchor ? html`<${Term} to=${anchor}>${text}<//>` : text}
    ${partitions.length > 0 &&
    html` <span class="quiet">${partitions.slice(0, SHOWN).map((each, at) => html`${at > 0 && ", "}<a href=${url("/inside/partitions", [each.topic, each.partition])}>${partitionText(each)}</a>`)}${rest > 0 && ` and ${count(rest)} more`}</span>`}`;
}

function View() {
  const [query, set] = useQuery({ broker: "", api: "" });
  const { data, error } = useLive(url("/api/inside/waiting", [], { broker: query.broker }));
  const answers = (data?.brokers ?? []).filter((each) => each.view);
  const rows = answers.flatMap((each) => each.view.waiting.map((row) => ({ ...row, broker: each.broker }))).sort((a, b) => b.waits_ms - a.waits_ms);
  const own = answers.flatMap((each) => each.view.own.map((row) => ({ api: "(own)", broker: each.broker, waits_for: row })));
  const apis = [...new Set(rows.map((row) => row.api))].sort();
  const shown = [...rows, ...own].filter((row) => !query.api || row.api === query.api);
  const total = (name) => answers.reduce((sum, each) => sum + (each.view.purgatories[name] ?? 0), 0);
  return html`<${Heading} title="Purgatory" />
    <p class="quiet">Requests that have no answer yet, and what they wait for. Long polls of caught-up followers and consumers are always in <${Term} to="purgatory">purgatory<//>.</p>
    ${error && html`<${NoInside} error=${error} />`}
    <${Silent} rows=${data?.brokers} />
    ${data
      ? html`<${Figures} items=${[["Produce", count(total("Produce"))], ["Fetch", count(total("Fetch"))], ["Delete records", count(total("DeleteRecords"))], ["All waiting", count(rows.length)]]} />
          <div class="tools">
            <${BrokerChoice} value=${query.broker} onChange=${(broker) => set({ broker })} />
            <label class="field"><span>Request</span><select value=${query.api} onChange=${(event) => set({ api: event.currentTarget.value })}>
              <option value="">all</option>
              ${apis.map((api) => html`<option key=${api} value=${api} selected=${api === query.api}>${api}</option>`)}
            </select></label>
          </div>
          <${Table}
            label="Waiting requests"
            rows=${shown}
            keyOf=${(row) => row}
            empty="No request waits."
            columns=${[
              { id: "api", label: "Request", render: (row) => html`${row.api}${row.version !== undefined && html` <span class="quiet">v${row.version}</span>`}` },
              { id: "what", label: "Waits for", wide: true, render: (row) => html`<${What} row=${row} />` },
              { id: "who", label: "Client", wide: true, render: (row) => (row.api === "(own)" ? "a coordinator of this broker" : html`<span title=${row.user}>${row.client_id || "(no name)"}</span> <span class="quiet">${row.host}</span>`) },
              { id: "broker", label: "At broker", number: true, render: (row) => row.broker },
              { id: "since", label: "Since", number: true, render: (row) => duration(row.waits_ms) },
              { id: "until", label: "At most", number: true, render: (row) => (row.expires_in_ms === null || row.expires_in_ms === undefined || row.expires_in_ms > 2e9 ? "–" : `${duration(row.expires_in_ms)} more`) },
            ]}
          />`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/inside/waiting", title: "Purgatory", nav: { label: "Purgatory", group: "Inside" }, View };
