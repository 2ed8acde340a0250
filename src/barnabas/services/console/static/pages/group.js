// One group: lag, causes of its growth, members, resets.
import { html, useMemo, useState } from "../lib/dom.js";
import { change, get, url, useLive } from "../lib/api.js";
import { go, useQuery } from "../lib/router.js";
import { useAbout } from "../lib/about.js";
import { count, plural, rate } from "../lib/format.js";
import { Chart } from "../lib/chart.js";
import { Badge, Choice, Dialog, Field, Figures, Heading, Loading, Problem, Table, Tabs, useAction } from "../lib/parts.js";
import { STATE_KIND } from "./groups.js";

const TITLES = {
  "records-lost": "Records were lost",
  "retention-near": "Retention is near",
  "no-members": "No members",
  "rebalance-loop": "Repeated rebalances",
  "open-transaction": "An open transaction",
  "member-does-not-poll": "A member does not poll",
  "partition-stands-still": "A partition makes no progress",
  "hot-partition": "A hot partition",
  "slower-than-producers": "Slower than its producers",
};

const PROTOCOLS = { Consumer: "consumer (KIP-848)", Share: "share (KIP-932)" };

const columns = [
  { id: "topic", label: "Topic", wide: true, render: (row) => html`<a href=${url("/topics", [row.topic])}>${row.topic}</a>` },
  { id: "partition", label: "Partition", number: true, render: (row) => row.partition },
  { id: "committed", label: "Committed", number: true, render: (row) => count(row.committed) },
  { id: "end", label: "End", number: true, render: (row) => count(row.end) },
  { id: "lag", label: "Lag", number: true, render: (row) => (row.lag > 0 ? html`<strong>${count(row.lag)}</strong>` : count(row.lag)) },
  { id: "produced", label: "Written", number: true, render: (row) => rate(row.produced) },
  { id: "consumed", label: "Read", number: true, render: (row) => rate(row.consumed) },
  { id: "client", label: "Member", wide: true, render: (row) => (row.client === null ? html`<em class="quiet">none</em>` : html`<span title=${row.member}>${row.client}</span>`) },
];

// The members of a share group read the same partitions: what is shown is where the group begins, and what is not done after it.
const shareColumns = columns
  .filter((each) => each.id !== "consumed")
  .map((each) => ({ committed: { ...each, label: "Start offset" }, client: { ...each, label: "Members" } })[each.id] ?? each);

const memberColumns = [
  { id: "client", label: "Client", wide: true, render: (row) => row.client },
  { id: "id", label: "Member", wide: true, render: (row) => html`<span class="mono">${row.id}</span>` },
  { id: "host", label: "Host", render: (row) => row.host },
  {
    id: "partitions",
    label: "Assignment",
    wide: true,
    render: (row) => {
      const topics = new Map();
      for (const { topic, partition } of row.partitions) topics.set(topic, [...(topics.get(topic) ?? []), partition]);
      return topics.size ? [...topics].map(([topic, list]) => `${topic}: ${list.join(", ")}`).join("; ") : html`<em class="quiet">nothing</em>`;
    },
  },
];

function Causes({ data }) {
  if (!data.causes.length) return null;
  return html`<section class="panel" aria-label="Why the lag grows">
    <h2>Why it grows</h2>
    <ul class="causes">
      ${data.causes.map((cause) => html`<li key=${cause.kind}><strong>${TITLES[cause.kind] ?? cause.kind}.</strong> ${cause.sentence}</li>`)}
    </ul>
  </section>`;
}

function Lag({ group, data }) {
  const topics = useMemo(() => [...new Set(data.partitions.map((each) => each.topic))], [data]);
  const [topic, setTopic] = useState("");
  const { data: parts } = useLive(topic ? url("/api/groups", [group, "history"], { topic }) : null);
  const wanted = useMemo(() => {
    if (!topic || !parts) return { at: data.history.at, series: [{ label: "lag", values: data.history.lag }] };
    const most = Object.entries(parts.partitions)
      .sort((a, b) => (b[1].at(-1) ?? 0) - (a[1].at(-1) ?? 0))
      .slice(0, 8);
    return { at: parts.at, series: most.map(([index, values]) => ({ label: `partition ${index}`, values: values.map((v) => (v < 0 ? null : v)) })) };
  }, [data.history, parts, topic]);
  return html`<section class="panel">
    <div class="row spread"><h2>Lag of the last hour</h2>
      <${Choice} label="Show" value=${topic} options=${[["", "all partitions together"], ...topics.map((each) => [each, `${each}, by partition`])]} onChange=${setTopic} />
    </div>
    ${wanted.at.length > 1
      ? html`<${Chart} at=${wanted.at} series=${wanted.series} format=${(n) => count(Math.round(n))} says=${`Lag: ${count(data.lag)} now, ${count(data.history.lag[0] ?? 0)} when the history begins.`} />`
      : html`<p class="quiet">The chart begins when this page is first opened: it gets a point every ten seconds.</p>`}
  </section>`;
}

function Reset({ group, data, onClose }) {
  const topics = [...new Set(data.partitions.map((each) => each.topic))];
  const [form, setForm] = useState({ topic: "", other: "", partitions: "", to: "earliest", value: "" });
  const [preview, setPreview] = useState(null);
  const set = (changes) => {
    setForm({ ...form, ...changes });
    setPreview(null);
  };
  const value = form.to === "time" ? new Date(form.value).getTime() || "" : form.value;
  const [run, busy, error] = useAction(async () => {
    if (!preview) {
      setPreview(await get(url("/api/groups", [group, "reset"], { topic: form.topic === "?" ? form.other : form.topic, partitions: form.partitions, to: form.to, value: ["offset", "time", "shift"].includes(form.to) ? String(value) : "" })));
      return;
    }
    await change("POST", url("/api/groups", [group, "reset"]), { offsets: preview.offsets.map(({ topic, partition, offset }) => ({ topic, partition, offset })) });
    onClose();
  });
  return html`<${Dialog} title=${`Reset offsets of ${group}`} onClose=${onClose} onSubmit=${run} busy=${busy || preview?.isActive} error=${error} submit=${preview ? `Reset ${plural(preview.offsets.length, "partition")}` : "Preview"} danger=${!!preview}>
    <${Choice} label="Topic" value=${form.topic} options=${[["", "all committed topics"], ...topics, ["?", "another topic"]]} onChange=${(topic) => set({ topic })} />
    ${form.topic === "?" && html`<${Field} label="Name of the topic" value=${form.other} required onInput=${(event) => set({ other: event.currentTarget.value })} />`}
    ${form.topic && html`<${Field} label="Partitions" hint="For example 0,1,2. Leave empty for all partitions" value=${form.partitions} onInput=${(event) => set({ partitions: event.currentTarget.value })} />`}
    <${Choice} label="To" value=${form.to} options=${[["earliest", "the oldest record"], ["latest", "the end"], ["offset", "an offset"], ["time", "a time"], ["shift", "forward by a number of records (negative: back)"]]} onChange=${(to) => set({ to, value: "" })} />
    ${(form.to === "offset" || form.to === "shift") && html`<${Field} label=${form.to === "offset" ? "Offset" : "Records"} type="number" required value=${form.value} onInput=${(event) => set({ value: event.currentTarget.value })} />`}
    ${form.to === "time" && html`<${Field} label="Time" type="datetime-local" step="1" required value=${form.value} onInput=${(event) => set({ value: event.currentTarget.value })} />`}
    ${preview &&
    html`${preview.isActive && html`<div class="problem" role="alert"><strong>NON_EMPTY_GROUP</strong> The group is ${preview.state}. Stop its consumers first.</div>`}
      <p>Lag: ${count(preview.lagBefore)} now, <strong>${count(preview.lagAfter)}</strong> afterwards.</p>
      <div class="table short" tabindex="0"><table aria-label="Preview"><thead><tr><th scope="col">Partition</th><th scope="col" class="number">Now</th><th scope="col" class="number">Then</th><th scope="col" class="number">Change</th></tr></thead>
        <tbody>${preview.offsets.map((row) => html`<tr key=${`${row.topic}-${row.partition}`}><td>${row.topic}-${row.partition}</td><td class="number">${count(row.committed)}</td><td class="number">${count(row.offset)}</td><td class="number">${row.change > 0 ? "+" : ""}${count(row.change)}</td></tr>`)}</tbody></table></div>`}
  <//>`;
}

function Delete({ group, onClose }) {
  const [run, busy, error] = useAction(async () => {
    await change("DELETE", url("/api/groups", [group]));
    go("/groups");
  });
  return html`<${Dialog} title=${`Delete ${group}?`} onClose=${onClose} onSubmit=${run} submit="Delete" danger=${true} busy=${busy} error=${error}>
    <p>This deletes its offsets. Only a group without members can be deleted.</p>
  <//>`;
}

function View({ group }) {
  const { data, error } = useLive(url("/api/groups", [group]));
  const [{ tab }, set] = useQuery({ tab: "lag" });
  const [open, setOpen] = useState(null);
  const about = useAbout();
  const close = () => setOpen(null);
  return html`<${Heading} title=${group} crumbs=${[["Groups", "/groups"]]}>
      ${data && about.readWrite && html`${data.type !== "Share" && html`<button type="button" onClick=${() => setOpen("reset")}>Reset offsets…</button>`}<button type="button" class="danger" onClick=${() => setOpen("delete")}>Delete…</button>`}
    <//>
    <${Problem} error=${error} />
    ${data
      ? html`<${Figures}
            items=${[
              ["State", html`<${Badge} kind=${STATE_KIND[data.state] ?? "plain"}>${data.state}<//>`],
              ["Lag", count(data.lag)],
              ["Members", count(data.members.length)],
              ["Written", rate(data.produced)],
              ["Read", rate(data.consumed)],
              ["Protocol", PROTOCOLS[data.type] ?? (data.protocol || "classic")],
              ["Assignor", data.assignor || "–"],
              ["Coordinator", data.coordinator],
            ]}
          />
          ${data.lagLeavesOut > 0 && html`<p class="notice">The lag leaves out ${plural(data.lagLeavesOut, "partition")} ${data.type === "Share" ? "that the group has not begun to read." : "with records for which the group has committed no offset yet."}</p>`}
          <${Causes} data=${data} />
          <${Tabs} label="Group" tabs=${[["lag", "Lag"], ["members", `Members (${data.members.length})`]]} current=${tab} onChange=${(next) => set({ tab: next })} />
          ${tab === "lag" &&
          html`${data.type !== "Share" && html`<${Lag} group=${group} data=${data} />`}
            <${Table} label="Lag by partition" columns=${data.type === "Share" ? shareColumns : columns} rows=${data.partitions} keyOf=${(row) => `${row.topic}-${row.partition}`} empty="The group has no committed offsets and no assigned partitions." />`}
          ${tab === "members" && html`<${Table} label="Members" columns=${memberColumns} rows=${data.members} keyOf=${(row) => row.id} empty="The group has no members." />`}
          ${open === "reset" && html`<${Reset} group=${group} data=${data} onClose=${close} />`}
          ${open === "delete" && html`<${Delete} group=${group} onClose=${close} />`}`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/groups/:group", title: "Group", View };
