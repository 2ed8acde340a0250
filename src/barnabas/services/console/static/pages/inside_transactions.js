// Transactions as their coordinators see them.
import { html } from "../lib/dom.js";
import { url, useLive } from "../lib/api.js";
import { count, duration } from "../lib/format.js";
import { Badge, Figures, Heading, Loading, Table } from "../lib/parts.js";
import { NoInside, Silent, Term } from "../lib/inside.js";

const KINDS = { Ongoing: "warn", PrepareCommit: "accent", PrepareAbort: "accent", CompleteCommit: "good", CompleteAbort: "plain" };

const byName = (a, b) => a.topic.localeCompare(b.topic) || a.partition - b.partition;

function View() {
  const { data, error } = useLive("/api/inside/transactions");
  const open = (data?.transactions ?? []).filter((each) => each.state === "Ongoing");
  const late = open.filter((each) => each.timeout_ms !== null && each.open_ms > each.timeout_ms);
  return html`<${Heading} title="Transactions" />
    <p class="quiet">Every transactional id that a coordinator knows. Below the first offset of an open <${Term} to="producers-and-transactions">transaction<//> lies the <${Term} to="the-last-stable-offset">last stable offset<//>: read_committed consumers read no further. What a partition knows of its producers is on the partition's page.</p>
    ${error && html`<${NoInside} error=${error} />`}
    <${Silent} rows=${data?.silent} />
    ${data
      ? html`<${Figures} items=${[["Known", count(data.count)], ["Open", count(open.length)], ["Past their time-out", count(late.length), late.length ? "bad" : ""]]} />
          <${Table}
            label="Transactions"
            rows=${data.transactions}
            keyOf=${(row) => row.transactional_id}
            empty="No producer has used a transaction yet."
            columns=${[
              { id: "id", label: "Transactional id", wide: true, render: (row) => row.transactional_id },
              { id: "state", label: "State", render: (row) => html`<${Badge} kind=${KINDS[row.state] ?? "plain"}>${row.state}<//>` },
              { id: "producer", label: "Producer id", number: true, render: (row) => html`${row.producer_id} <span class="quiet">epoch ${row.epoch}</span>` },
              { id: "coordinator", label: "Coordinator", render: (row) => html`broker ${row.coordinator} <span class="quiet">__transaction_state-${row.coordinator_partition}</span>` },
              { id: "open", label: "Open", number: true, render: (row) => (row.state === "Ongoing" ? duration(row.open_ms) : "–") },
              { id: "timeout", label: "Time-out", number: true, render: (row) => (row.timeout_ms === null ? "never" : duration(row.timeout_ms)) },
              { id: "changed", label: "Changed", number: true, render: (row) => `${duration(row.updated_ms_ago)} ago` },
              {
                id: "partitions",
                label: "Partitions",
                wide: true,
                render: (row) =>
                  row.partition_count
                    ? html`${[...row.partitions].sort(byName).map((each, at) => html`${at > 0 && ", "}<a href=${url("/inside/partitions", [each.topic, each.partition])}>${each.topic}-${each.partition}</a>`)}${row.partition_count > row.partitions.length && ` and ${row.partition_count - row.partitions.length} more`}`
                    : html`<span class="quiet">none</span>`,
              },
            ]}
          />`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/inside/transactions", title: "Transactions", nav: { label: "Transactions", group: "Inside" }, View };
