// One topic.
import { html, useState } from "../lib/dom.js";
import { useQuery } from "../lib/router.js";
import { Messages } from "./messages.js";
import { STATE_KIND } from "./groups.js";
import { useAbout } from "../lib/about.js";
import { AddPartitions, DeleteRecords, DeleteTopic, Settings } from "./topic_changes.js";
import { url, useLive } from "../lib/api.js";
import { count, plural, rate, size } from "../lib/format.js";
import { Badge, Figures, Heading, Loading, Problem, Table, Tabs } from "../lib/parts.js";

const columnsOf = (topic) => [
  { id: "partition", label: "Partition", number: true, render: (row) => html`<a href=${url("/inside/partitions", [topic, row.partition])} title="Internal view">${row.partition}</a>` },
  { id: "leader", label: "Leader", number: true, render: (row) => (row.leader < 0 ? html`<${Badge} kind="bad">none<//>` : row.leader) },
  { id: "replicas", label: "Replicas", render: (row) => row.replicas.join(", ") },
  {
    id: "isr",
    label: "In sync",
    render: (row) => html`${row.isr.join(", ")}${row.isr.length < row.replicas.length && html` <${Badge} kind="warn">${row.replicas.length - row.isr.length} behind<//>`}`,
  },
  { id: "start", label: "Start", number: true, render: (row) => count(row.start) },
  { id: "end", label: "End", number: true, render: (row) => count(row.end) },
  { id: "rate", label: "Rate", number: true, render: (row) => rate(row.rate) },
  { id: "size", label: "Size", number: true, render: (row) => size(row.size) },
];

const groupColumns = [
  { id: "group", label: "Group", wide: true, render: (row) => html`<a href=${url("/groups", [row.group])}>${row.group}</a>` },
  { id: "state", label: "State", render: (row) => html`<${Badge} kind=${STATE_KIND[row.state] ?? "plain"}>${row.state}<//>` },
  { id: "partitions", label: "Partitions", number: true, render: (row) => count(row.partitions) },
  { id: "lag", label: "Lag", number: true, render: (row) => count(row.lag) },
];

function Consumers({ topic }) {
  const { data, error } = useLive(url("/api/topics", [topic, "groups"]));
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  return html`<${Problem} error=${error} />
    ${data.known < data.of && html`<p class="notice">${count(data.known)} of ${plural(data.of, "group")} are known so far.</p>`}
    <${Table} label="Consumers" columns=${groupColumns} rows=${data.groups} keyOf=${(row) => row.group} empty="No group has committed offsets of this topic." />`;
}

const TABS = [
  ["messages", "Messages"],
  ["partitions", "Partitions"],
  ["groups", "Consumers"],
  ["settings", "Settings"],
];

function View({ topic }) {
  const { data, error } = useLive(url("/api/topics", [topic]));
  const [{ tab }, set] = useQuery({ tab: "messages" });
  const [open, setOpen] = useState(null);
  const about = useAbout();
  const close = () => setOpen(null);
  return html`<${Heading} title=${topic} crumbs=${[["Topics", "/topics"]]}>
      ${data &&
      about.readWrite &&
      html`<button type="button" onClick=${() => setOpen("grow")}>Add partitions…</button>
        <button type="button" onClick=${() => setOpen("records")}>Delete records…</button>
        <button type="button" class="danger" onClick=${() => setOpen("delete")}>Delete…</button>`}
    <//>
    <${Problem} error=${error} />
    ${data
      ? html`<${Figures} items=${[["Partitions", count(data.partitions)], ["Replicas", count(data.replicas)], ["Records", count(data.messages)], ["Rate", rate(data.rate)], ["On disk", size(data.size)]]} />
          <${Tabs} label="Topic" tabs=${TABS} current=${tab} onChange=${(next) => set({ tab: next })} />
          ${tab === "messages" && html`<${Messages} topic=${topic} partitions=${data.partitions} />`}
          ${tab === "groups" && html`<${Consumers} topic=${topic} />`}
          ${tab === "settings" && html`<${Settings} topic=${topic} />`}
          ${open === "grow" && html`<${AddPartitions} topic=${topic} now=${data.partitions} onClose=${close} />`}
          ${open === "records" && html`<${DeleteRecords} topic=${topic} partitions=${data.partitionList} onClose=${close} />`}
          ${open === "delete" && html`<${DeleteTopic} topic=${topic} onClose=${close} />`}
          ${tab === "partitions" && html`<${Table} label="Partitions" columns=${columnsOf(topic)} rows=${data.partitionList} keyOf=${(row) => row.partition} />`}`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/topics/:topic", title: "Topic", View };
