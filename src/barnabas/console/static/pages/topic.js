// One topic.
import { html } from "../lib/dom.js";
import { useQuery } from "../lib/router.js";
import { Messages } from "./messages.js";
import { url, useLive } from "../lib/api.js";
import { count, rate, size } from "../lib/format.js";
import { Badge, Figures, Heading, Loading, Problem, Table, Tabs } from "../lib/parts.js";

const columns = [
  { id: "partition", label: "Partition", number: true, render: (row) => row.partition },
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

const TABS = [
  ["messages", "Messages"],
  ["partitions", "Partitions"],
];

function View({ topic }) {
  const { data, error } = useLive(url("/api/topics", [topic]));
  const [{ tab }, set] = useQuery({ tab: "messages" });
  return html`<${Heading} title=${topic} crumbs=${[["Topics", "/topics"]]} />
    <${Problem} error=${error} />
    ${data
      ? html`<${Figures} items=${[["Partitions", count(data.partitions)], ["Replicas", count(data.replicas)], ["Records", count(data.messages)], ["Rate", rate(data.rate)], ["On disk", size(data.size)]]} />
          <${Tabs} label="Topic" tabs=${TABS} current=${tab} onChange=${(next) => set({ tab: next })} />
          ${tab === "messages" && html`<${Messages} topic=${topic} partitions=${data.partitions} />`}
          ${tab === "partitions" && html`<${Table} label="Partitions" columns=${columns} rows=${data.partitionList} keyOf=${(row) => row.partition} />`}`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/topics/:topic", title: "Topic", View };
