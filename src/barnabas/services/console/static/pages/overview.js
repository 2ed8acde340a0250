// The cluster at a glance.
import { html, useMemo, useState } from "../lib/dom.js";
import { get, url, useLive } from "../lib/api.js";
import { count, plural, rate, size, time } from "../lib/format.js";
import { Chart } from "../lib/chart.js";
import { Badge, Figures, Heading, Loading, Problem, Table } from "../lib/parts.js";

const columns = [
  { id: "id", label: "Broker", render: (row) => html`<strong>${row.id}</strong> ${row.isController && html`<${Badge} kind="good">controller<//>`}${!row.isAlive && html`<${Badge} kind="bad">down<//>`}` },
  { id: "address", label: "Address", wide: true, render: (row) => (row.host === null ? "–" : `${row.host}:${row.port}`) },
  { id: "rack", label: "Rack", render: (row) => row.rack ?? "–" },
  { id: "leaders", label: "Leaders", number: true, render: (row) => count(row.leaders) },
  { id: "replicas", label: "Replicas", number: true, render: (row) => count(row.replicas) },
  { id: "outOfSync", label: "Out of sync", number: true, render: (row) => (row.outOfSync ? html`<${Badge} kind="warn">${count(row.outOfSync)}<//>` : "0") },
  { id: "size", label: "On disk", number: true, render: (row) => size(row.size) },
  { id: "answer", label: "Answers in", number: true, render: (row) => (row.answerMs === null ? "–" : `${row.answerMs.toFixed(1)} ms`) },
];

function Balance({ brokers }) {
  const most = Math.max(1, ...brokers.map((each) => each.replicas));
  const width = (n) => ({ width: `${(100 * n) / most}%` });
  return html`<section class="panel">
    <h2>Leaders and replicas</h2>
    <p class="quiet legend"><span class="swatch leaders" aria-hidden="true"></span>leads <span class="swatch followers" aria-hidden="true"></span>follows <span class="swatch behind" aria-hidden="true"></span>out of sync</p>
    <ul class="bars">
      ${brokers.map((each) => {
        const follows = Math.max(0, each.replicas - each.leaders - each.outOfSync);
        return html`<li key=${each.id}>
          <span class="name">broker ${each.id}</span>
          <span class="bar" role="img" aria-label=${`Broker ${each.id} leads ${plural(each.leaders, "partition")} and has ${plural(each.replicas, "replica")}, ${each.outOfSync} of them out of sync`}>
            <span class="leaders" style=${width(each.leaders)}></span><span class="followers" style=${width(follows)}></span><span class="behind" style=${width(each.outOfSync)}></span>
          </span>
          <span class="number">${count(each.leaders)} / ${count(each.replicas)}</span>
        </li>`;
      })}
    </ul>
  </section>`;
}

function Doctor() {
  const { data, error } = useLive("/api/doctor");
  const [again, setAgain] = useState({ data: null, error: null, busy: false });
  const run = async () => {
    setAgain({ ...again, busy: true });
    try {
      setAgain({ data: await get(url("/api/doctor", [], { again: "1" })), error: null, busy: false });
    } catch (failure) {
      setAgain({ data: again.data, error: failure, busy: false });
    }
  };
  const shown = again.data && (!data || again.data.at > data.at) ? again.data : data;
  const kind = { error: "bad", warning: "warn", note: "plain" };
  return html`<section class="panel">
    <div class="row spread"><h2>Findings of barnabas doctor</h2><button type="button" disabled=${again.busy || !shown} onClick=${run}>${again.busy ? "Checking…" : "Check again"}</button></div>
    <${Problem} error=${again.error ?? error} />
    ${shown
      ? html`${shown.findings.length === 0 && html`<p><${Badge} kind="good">no problems found<//></p>`}
          <ul class="findings">
            ${shown.findings.map((each, i) => html`<li key=${i}><${Badge} kind=${kind[each.severity]}>${each.severity}<//> <strong>${each.subject}</strong>: ${each.message}${each.means && html`; ${each.means}`}. <span class="quiet">${each.advice}</span></li>`)}
          </ul>
          <p class="quiet">Checked at ${time(shown.at)}.</p>`
      : !error && html`<p class="quiet" role="status">Checking settings, logs, groups and transactions takes a few seconds.</p>`}
  </section>`;
}

function down(brokers) {
  const ids = brokers.filter((each) => !each.isAlive).map((each) => each.id);
  if (!ids.length) return "";
  return ids.length === 1 ? `Broker ${ids[0]} is down. ` : `Brokers ${ids.join(", ")} are down. `;
}

function View() {
  const { data, error } = useLive("/api/overview");
  const charts = useMemo(() => {
    if (!data) return null;
    return {
      throughput: [{ label: "records per second", values: data.charts.rate }],
      answers: Object.entries(data.charts.answerMs).map(([id, values]) => ({ label: `broker ${id}`, values })),
    };
  }, [data]);
  return html`<${Heading} title="Overview" />
    <${Problem} error=${error} />
    ${data
      ? html`<${Figures}
            items=${[
              ["Brokers", count(data.brokers.filter((each) => each.isAlive).length)],
              ["Controller", data.controller < 0 ? "none" : data.controller, data.controller < 0 ? "bad" : ""],
              ["Topics", count(data.topics)],
              ["Partitions", count(data.partitions)],
              ["Under-replicated", count(data.underReplicated), data.underReplicated ? "warn" : ""],
              ["Refuse writes", count(data.underMinIsr), data.underMinIsr ? "bad" : ""],
              ["Offline", count(data.offline), data.offline ? "bad" : ""],
              ["Written", rate(data.rate)],
              ["On disk", size(data.size)],
            ]}
          />
          ${data.offline > 0 && html`<div class="problem" role="alert">Without a leader: ${data.offlineSome.join(", ")}${data.offline > data.offlineSome.length ? " and more" : ""}. They can be neither written nor read.</div>`}
          ${data.underMinIsr > 0 && html`<div class="problem" role="alert"><strong>${data.underMinIsr === 1 ? "1 partition refuses" : `${count(data.underMinIsr)} partitions refuse`} writes</strong> with acks=all: fewer replicas are in sync than min.insync.replicas. ${data.underMinIsrSome.join(", ")}${data.underMinIsr > data.underMinIsrSome.length ? " and more" : ""}.</div>`}
          ${data.underReplicated > 0 && html`<p class="notice">${down(data.brokers)}${plural(data.underReplicated, "partition")} with fewer replicas in sync than there should be: ${data.underReplicatedSome.join(", ")}${data.underReplicated > data.underReplicatedSome.length ? " and more" : ""}.</p>`}
          <div class="grid">
            <section class="panel"><h2>Throughput</h2><${Chart} at=${data.charts.at} series=${charts.throughput} format=${rate} says=${`${rate(data.rate)} are written.`} /></section>
            <section class="panel"><h2>Answer time of brokers</h2><${Chart} at=${data.charts.at} series=${charts.answers} format=${(ms) => `${Math.round(ms * 10) / 10} ms`} says=${data.brokers.map((each) => `Broker ${each.id}: ${each.answerMs === null ? "no answer" : `${each.answerMs} ms`}.`).join(" ")} /></section>
            <${Balance} brokers=${data.brokers} />
            <${Doctor} />
          </div>
          <h2>Brokers</h2>
          <${Table} label="Brokers" columns=${columns} rows=${data.brokers} keyOf=${(row) => row.id} />
          <p class="quiet">Cluster id ${data.clusterId}</p>`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/overview", title: "Overview", nav: { label: "Overview" }, View };
