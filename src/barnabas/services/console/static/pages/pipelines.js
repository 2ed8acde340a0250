// Spark queries that report their progress, and their dead letters.
import { html, useState } from "../lib/dom.js";
import { change, url, useLive } from "../lib/api.js";
import { useAbout } from "../lib/about.js";
import { count, duration, plural, rate, size, time } from "../lib/format.js";
import { Badge, Dialog, Field, Figures, Heading, Loading, Problem, Table, useAction } from "../lib/parts.js";

const KINDS = { running: "good", ended: "plain", failed: "bad" };

/** The last batches as bars. */
function Bars({ values, label }) {
  const most = Math.max(...values, 1);
  const width = 100 / Math.max(values.length, 20);
  return html`<svg class="bars" role="img" aria-label=${label} width="100%" height="44">
    ${values.map((value, at) => {
      const height = Math.max(1, (value / most) * 42);
      return html`<rect key=${at} x=${`${at * width}%`} y=${43 - height} width=${`${width * 0.8}%`} height=${height}></rect>`;
    })}
  </svg>`;
}

function Query({ query }) {
  const { progress, history } = query;
  const state = query.silent ? "silent" : query.state;
  const rates = history.map((each) => each.rows_per_second ?? 0);
  const times = history.map((each) => each.batch_ms ?? 0);
  const facts = progress && [
    ["Batch", count(progress.batch)],
    ["Rows", count(progress.rows)],
    ["Lag", progress.lag === null ? "–" : count(progress.lag)],
    ["Watermark", progress.watermark ? progress.watermark.replace("T", " ").replace(".000Z", "") : "–"],
    ["State", progress.state_rows ? `${count(progress.state_rows)} rows, ${size(progress.state_bytes)}` : "none"],
    ["Reads", query.topics.length ? query.topics.map((topic, at) => html`${at > 0 && ", "}<a href=${url("/topics", [topic])}>${topic}</a>`) : "–"],
  ];
  return html`<section class="replica">
    <h2>${query.query} <${Badge} kind=${query.silent ? "warn" : (KINDS[state] ?? "plain")}>${state}<//></h2>
    <p class="quiet">${query.pipeline}, reported ${time(query.at_ms).slice(11, 19)}${query.silent && `, ${duration(Date.now() - query.at_ms)} ago`}</p>
    ${query.error && html`<div class="problem" role="alert">${query.error}</div>`}
    ${progress
      ? html`<div class="pair">
            <div><strong>${rate(progress.rows_per_second)}</strong> <span class="quiet">rows</span><${Bars} values=${rates} label=${`Rows per second of the last ${plural(rates.length, "batch", "batches")}`} /></div>
            <div><strong>${duration(progress.batch_ms)}</strong> <span class="quiet">per batch</span><${Bars} values=${times} label=${`Time of the last ${plural(times.length, "batch", "batches")}`} /></div>
          </div>
          <dl class="offsets">${facts.map(([label, value]) => html`<div key=${label}><dt>${label}</dt><dd>${value}</dd></div>`)}</dl>
          ${Object.entries(progress.expectations ?? {}).map(
            ([name, each]) => html`<p key=${name}><${Badge} kind=${each.failed ? "warn" : "good"}>${count(each.failed)} failed<//> of ${count(each.passed + each.failed)}: ${name} <span class="quiet">(${each.action})</span></p>`,
          )}`
      : html`<p class="quiet">No batch yet.</p>`}
  </section>`;
}

function Replay({ topic, onClose }) {
  const [to, setTo] = useState("");
  const [limit, setLimit] = useState("");
  const [plan, setPlan] = useState(null);
  const ask = (dryRun) => change("POST", "/api/pipelines/replay", { from: topic, to: to || undefined, limit: limit ? Number(limit) : undefined, dryRun });
  const [run, busy, error] = useAction(async () => setPlan(await ask(!(plan && plan.dryRun))));
  const edit = (set) => (event) => {
    set(event.currentTarget.value);
    setPlan(null);
  };
  const submit = plan?.dryRun ? "Replay" : "Preview";
  return html`<${Dialog} title=${`Replay ${topic}`} onClose=${onClose} onSubmit=${plan && !plan.dryRun ? undefined : run} submit=${submit} busy=${busy} error=${error}>
    <p>Each letter is sent back once to its original topic. Letters that were replayed before are not sent again.</p>
    <${Field} label="To another topic" value=${to} onInput=${edit(setTo)} hint="Leave empty for the original topics" />
    <${Field} label="At most" type="number" min="1" value=${limit} onInput=${edit(setLimit)} hint="Leave empty for all" />
    ${plan &&
    html`<div role="status">
      <p>${plural(plan.read, "letter")} read. ${plan.dryRun ? "It would send:" : "Sent:"}</p>
      <ul>
        ${Object.entries(plan.replayed).map(([name, letters]) => html`<li key=${name}>${count(letters)} to ${name}</li>`)}
        ${!Object.keys(plan.replayed).length && html`<li>nothing</li>`}
        ${plan.givenUp > 0 && html`<li>${count(plan.givenUp)} came back too often and stay</li>`}
      </ul>
    </div>`}
  <//>`;
}

function DeadLetters({ rows }) {
  const about = useAbout();
  const [chosen, setChosen] = useState(null);
  return html`<h2>Dead letters</h2>
    <${Table}
      label="Dead letters"
      rows=${rows}
      keyOf=${(row) => row.topic}
      columns=${[
        { id: "topic", label: "Topic", wide: true, render: (row) => html`<a href=${url("/topics", [row.topic])}>${row.topic}</a>` },
        { id: "letters", label: "Letters", number: true, render: (row) => (row.error ? html`<span class="quiet">${row.error}</span>` : count(row.letters)) },
        { id: "waiting", label: "Not replayed", number: true, render: (row) => (row.waiting ? html`<${Badge} kind="warn">${count(row.waiting)}<//>` : count(row.waiting)) },
        { id: "replay", label: "", render: (row) => html`<button type="button" disabled=${!about.readWrite || !row.letters} title=${about.readWrite ? "" : "Start the console with --read-write"} onClick=${() => setChosen(row.topic)}>Replay…</button>` },
      ]}
    />
    ${chosen && html`<${Replay} topic=${chosen} onClose=${() => setChosen(null)} />`}`;
}

function View() {
  const { data, error } = useLive("/api/pipelines");
  const running = (data?.queries ?? []).filter((each) => each.state === "running" && !each.silent);
  const failed = (data?.queries ?? []).filter((each) => each.state === "failed");
  const lags = running.map((each) => each.progress?.lag).filter((lag) => lag !== null && lag !== undefined);
  return html`<${Heading} title="Pipelines" />
    <${Problem} error=${error} />
    ${data && data.queries.length > 0
      ? html`<${Figures} items=${[["Running", count(running.length)], ["Failed", count(failed.length), failed.length ? "bad" : ""], ["Rows", rate(running.reduce((sum, each) => sum + (each.progress?.rows_per_second ?? 0), 0))], ["Lag", lags.length ? count(lags.reduce((sum, lag) => sum + lag, 0)) : "–"]]} />
          <div class="replicas">${data.queries.map((query) => html`<${Query} key=${`${query.pipeline}/${query.query}`} query=${query} />`)}</div>
          ${data.deadLetters.length > 0 && html`<${DeadLetters} rows=${data.deadLetters} />`}`
      : data
        ? html`<p>No Spark query has reported yet. <code>barnabas pipeline run</code> reports by itself; another query does when its session has a listener:</p>
            <pre class="data" tabindex="0">${`from barnabas.spark.report import PipelineReporter

spark.streams.addListener(PipelineReporter("HOST:PORT", pipeline="shop", dead_letters=["orders-dead"]))`}</pre>
            <p class="quiet">Reports are records of the topic <code>${data.topic}</code>.</p>`
        : !error && html`<${Loading} />`}`;
}

export const page = { path: "/pipelines", title: "Pipelines", nav: { label: "Pipelines" }, View };
