// Internal state of one partition: its replicas side by side, followers, epochs, segments, producers.
import { html, useState } from "../lib/dom.js";
import { url, useLive } from "../lib/api.js";
import { count, duration, size } from "../lib/format.js";
import { Badge, Heading, Loading, Problem, Table, Tabs } from "../lib/parts.js";
import { NoInside, Silent, Term } from "../lib/inside.js";

const TABS = [
  ["replicas", "Replicas"],
  ["segments", "Segments"],
  ["producers", "Producers"],
];

/** The range of offsets in the bars: of all logs together, or only their last part, so that their ends can be distinguished. */
function span(logs, isNear) {
  const ends = logs.map((log) => log.log_end);
  const last = Math.max(...ends, 1);
  const first = Math.min(...logs.map((log) => log.log_start));
  if (!isNear) return [first, last];
  const low = Math.min(...logs.map((log) => Math.min(log.high_watermark, log.last_stable_offset, log.log_end)));
  return [Math.max(first, low - Math.max(20, (last - low) * 2)), last];
}

function Bar({ replica, from, to }) {
  const { log } = replica.view;
  const at = (offset) => `${Math.min(100, Math.max(0, ((offset - from) / Math.max(1, to - from)) * 100))}%`;
  const mark = (offset, kind, name) =>
    html`<rect class=${`mark ${kind}`} x=${at(offset)} y=${kind === "hw" ? 1 : 15} width="3" height="24"><title>${name} ${count(offset)}</title></rect>`;
  const width = (a, b) => `${Math.max(0, parseFloat(at(b)) - parseFloat(at(a)))}%`;
  const label = `Broker ${replica.broker}: log start ${log.log_start}, last stable offset ${log.last_stable_offset}, high watermark ${log.high_watermark}, log end ${log.log_end}`;
  return html`<svg class="bar" role="img" aria-label=${label} height="40" width="100%">
    <rect class="room" x="0" y="8" width="100%" height="24" rx="3"></rect>
    <rect class="committed" x=${at(log.log_start)} y="8" width=${width(log.log_start, log.high_watermark)} height="24"></rect>
    <rect class="uncommitted" x=${at(log.high_watermark)} y="8" width=${width(log.high_watermark, log.log_end)} height="24"></rect>
    ${mark(log.log_end, "end", "log end")} ${mark(log.high_watermark, "hw", "high watermark")} ${mark(log.last_stable_offset, "lso", "last stable offset")}
  </svg>`;
}

function Lag({ follower, leadership }) {
  if (!follower) return html`<span class="quiet">the leader</span>`;
  if (follower.lag_records === null) return html`<span class="quiet">has not fetched yet</span>`;
  const share = leadership.lag_time_max_ms ? (follower.lag_ms ?? Infinity) / leadership.lag_time_max_ms : 0;
  const kind = follower.lag_records === 0 ? "good" : share > 0.5 ? "bad" : "warn";
  return html`<${Badge} kind=${kind}>${follower.lag_records === 0 ? "caught up" : `${count(follower.lag_records)} records`}<//>
    ${follower.lag_records > 0 && html` <span>${duration(follower.lag_ms)} behind</span>`}
    <span class="quiet"> · fetched ${follower.last_fetch_ms_ago === null ? "never" : `${duration(follower.last_fetch_ms_ago)} ago`}</span>`;
}

function Replica({ replica, data, leadership, from, to }) {
  const isLeader = replica.broker === data.leader;
  const inSync = data.isr.includes(replica.broker);
  const title = html`<h2>
    Broker ${replica.broker} <${Badge} kind=${isLeader ? "accent" : "plain"}>${replica.view ? replica.view.role : "silent"}<//>
    ${" "}<${Badge} kind=${inSync ? "good" : "warn"}>${inSync ? "in sync" : "out of sync"}<//>
  </h2>`;
  if (!replica.view?.log) {
    return html`<section class="replica gone">${title}<p class="quiet">${replica.error ?? "its log directory has failed"}</p></section>`;
  }
  const { log } = replica.view;
  const follower = leadership?.followers.find((each) => each.broker === replica.broker);
  return html`<section class="replica">
    ${title}
    <div class="lag">${leadership ? html`<${Lag} follower=${follower} leadership=${leadership} />` : html`<span class="quiet">no leader</span>`}</div>
    <${Bar} replica=${replica} from=${from} to=${to} />
    <dl class="offsets">
      <div><dt><${Term} to="log-start-and-log-end">Log start<//></dt><dd>${count(log.log_start)}</dd></div>
      <div><dt><${Term} to="the-last-stable-offset">Last stable<//></dt><dd>${count(log.last_stable_offset)}</dd></div>
      <div><dt><${Term} to="the-high-watermark">High watermark<//></dt><dd>${count(log.high_watermark)}</dd></div>
      <div><dt><${Term} to="log-start-and-log-end">Log end<//></dt><dd>${count(log.log_end)}</dd></div>
      <div><dt><${Term} to="leader-epochs">Leader epoch<//></dt><dd>${count(replica.view.leader_epoch)}</dd></div>
      <div><dt>On disk</dt><dd>${size(log.size_bytes)}</dd></div>
    </dl>
  </section>`;
}

function Epochs({ log }) {
  const rows = log.epochs.map((each, at) => ({ ...each, end: log.epochs[at + 1]?.start_offset ?? log.log_end }));
  return html`<h2><${Term} to="leader-epochs">Leader epochs<//> of the leader's log</h2>
    <${Table}
      label="Leader epochs"
      rows=${rows.reverse()}
      keyOf=${(row) => row.epoch}
      columns=${[
        { id: "epoch", label: "Epoch", number: true, render: (row) => count(row.epoch) },
        { id: "start", label: "From offset", number: true, render: (row) => count(row.start_offset) },
        { id: "records", label: "Offsets", number: true, render: (row) => count(row.end - row.start_offset) },
      ]}
    />
    ${log.epochs_left_out > 0 && html`<p class="quiet">${count(log.epochs_left_out)} older ones are not shown.</p>`}`;
}

function Replicas({ data }) {
  const [isNear, setNear] = useState(true);
  const logs = data.replicas.filter((each) => each.view?.log).map((each) => each.view.log);
  const leader = data.replicas.find((each) => each.broker === data.leader)?.view;
  if (!logs.length) return html`<${NoInside} />`;
  const [from, to] = span(logs, isNear);
  return html`<div class="tools">
      <label class="check"><input type="checkbox" checked=${isNear} onChange=${(event) => setNear(event.currentTarget.checked)} />Only the end of the logs</label>
      <span class="quiet">offsets ${count(from)} to ${count(to)}</span>
    </div>
    <ul class="legend">
      <li><i class="committed"></i>committed: the whole <${Term} to="leaders-followers-isr">ISR<//> has it</li>
      <li><i class="uncommitted"></i>not committed yet</li>
      <li><i class="hw"></i><${Term} to="the-high-watermark">high watermark<//></li>
      <li><i class="lso"></i><${Term} to="the-last-stable-offset">last stable offset<//></li>
      <li><i class="end"></i>log end</li>
    </ul>
    <div class="replicas">
      ${data.replicas.map((each) => html`<${Replica} key=${each.broker} replica=${each} data=${data} leadership=${leader?.leadership} from=${from} to=${to} />`)}
    </div>
    ${leader?.leadership &&
    html`<p class="quiet">
      <${Term} to="the-isr-shrinks-and-grows">ISR<//> ${leader.leadership.isr.join(", ")}${leader.leadership.proposed_isr && html`, proposed ${leader.leadership.proposed_isr.join(", ")}`}
      ${" "}· writes with acks=all need ${leader.leadership.min_isr} · a follower may lag for ${duration(leader.leadership.lag_time_max_ms)} · partition epoch ${count(leader.partition_epoch)}
    </p>`}
    ${leader?.log && html`<${Epochs} log=${leader.log} />`}`;
}

function Segments({ path }) {
  const { data, error } = useLive(`${path}?segments=true`);
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  const file = (row, suffix) => Object.entries(row.files).find(([name]) => name.endsWith(suffix))?.[1];
  const columns = [
    { id: "base", label: "First offset", number: true, render: (row) => html`${count(row.base_offset)}${row.is_active && html` <${Badge} kind="accent">active<//>`}` },
    { id: "log", label: "Log", number: true, render: (row) => size(row.size_bytes) },
    { id: "index", label: "Offset index", number: true, render: (row) => size(file(row, ".index")) },
    { id: "time", label: "Time index", number: true, render: (row) => size(file(row, ".timeindex")) },
    { id: "txn", label: "Transaction index", number: true, render: (row) => size(file(row, ".txnindex")) },
  ];
  return html`<p class="quiet">A partition is a folder of <${Term} to="segments-on-disk">segments<//>; the newest are first. The index of the active one is preallocated.</p>
    <div class="replicas">
      ${data.replicas.map(
        (each) => html`<section key=${each.broker} class="replica">
          <h2>Broker ${each.broker}</h2>
          ${each.view?.segments
            ? html`<${Table} label=${`Segments on broker ${each.broker}`} rows=${[...each.view.segments].reverse()} keyOf=${(row) => row.base_offset} columns=${columns} />
                ${each.view.log.segment_count > each.view.segments.length && html`<p class="quiet">${count(each.view.log.segment_count - each.view.segments.length)} older ones are not shown.</p>`}`
            : html`<p class="quiet">${each.error ?? "its log directory has failed"}</p>`}
        </section>`,
      )}
    </div>`;
}

function Producers({ path }) {
  const { data, error } = useLive(`${path}/producers`);
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  if (!data.view) return html`<${Silent} rows=${[data]} />`;
  return html`<p class="quiet">State of <${Term} to="producers-and-transactions">producers<//> in the leader's log, by which it recognizes duplicate and missing batches.</p>
    <${Table}
      label="Producers"
      rows=${data.view.producers}
      keyOf=${(row) => row.producer_id}
      empty="No idempotent or transactional producer has written lately."
      columns=${[
        { id: "id", label: "Producer id", number: true, render: (row) => row.producer_id },
        { id: "epoch", label: "Epoch", number: true, render: (row) => row.epoch },
        { id: "sequence", label: "Last sequence", number: true, render: (row) => (row.last_sequence < 0 ? "–" : count(row.last_sequence)) },
        { id: "offset", label: "Last offset", number: true, render: (row) => (row.last_offset < 0 ? "–" : count(row.last_offset)) },
        { id: "age", label: "Last write", number: true, render: (row) => (row.last_write_ms_ago === null ? "–" : `${duration(row.last_write_ms_ago)} ago`) },
        {
          id: "transaction",
          label: "Transaction",
          render: (row) => (row.transaction_first_offset === null ? html`<span class="quiet">none open</span>` : html`<${Badge} kind="warn">open since offset ${count(row.transaction_first_offset)}<//>`),
        },
      ]}
    />`;
}

function View({ topic, partition }) {
  const [tab, setTab] = useState("replicas");
  const path = url("/api/inside/partitions", [topic, partition]);
  const { data, error } = useLive(path);
  return html`<${Heading} title=${`${topic}, partition ${partition}`} crumbs=${[["Partitions", "/inside/partitions"], [topic, url("/topics", [topic])]]} />
    ${error && html`<${NoInside} error=${error} />`}
    ${data
      ? html`<${Tabs} label="View" tabs=${TABS} current=${tab} onChange=${setTab} />
          ${tab === "replicas" && html`<${Replicas} data=${data} />`}${tab === "segments" && html`<${Segments} path=${path} />`}${tab === "producers" && html`<${Producers} path=${path} />`}`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/inside/partitions/:topic/:partition", title: "Partition: internal view", View };
