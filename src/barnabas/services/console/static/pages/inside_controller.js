// Decisions of controllers with their reasons, the newest first.
import { html, useState } from "../lib/dom.js";
import { url, useLive } from "../lib/api.js";
import { count, plural, time } from "../lib/format.js";
import { Badge, Check, Figures, Heading, Loading } from "../lib/parts.js";
import { NoInside, Silent, Term } from "../lib/inside.js";

const KINDS = {
  "leaders elected": "accent",
  "took over as controller": "accent",
  "no leader found": "bad",
  "broker counts as gone": "bad",
  "replicas failed": "bad",
  "replicas left the ISR": "warn",
  "resigned as controller": "warn",
  "broker is shutting down": "warn",
  "broker answers again": "good",
};

const list = (values) => (values?.length ? values.join(", ") : "none");
const brokers = (values) => `${values.length === 1 ? "broker" : "brokers"} ${values.join(", ")}`;

function kindOf({ what, details }) {
  if (what === "ISR changed") return details.partitions.some((each) => each.isr_before && each.isr.length < each.isr_before.length) ? "warn" : "good";
  if (what === "brokers changed") return details.went.length ? "bad" : "good";
  return KINDS[what] ?? "plain";
}

/** Describe a decision in one sentence. */
function sentence({ what, details }) {
  switch (what) {
    case "leaders elected":
      return `${plural(details.count, "leader")} elected (${details.strategy})`;
    case "no leader found":
      return `no leader for ${plural(details.count, "partition")} (${details.strategy})`;
    case "ISR changed":
      return `ISR changed of ${plural(details.count, "partition")}`;
    case "replicas left the ISR":
      return `broker ${details.broker} left the ISR of ${plural(details.count, "partition")}`;
    case "brokers changed":
      return [details.came.length && `${brokers(details.came)} joined`, details.went.length && `${brokers(details.went)} left`, details.bounced.length && `${brokers(details.bounced)} restarted`].filter(Boolean).join(", ");
    case "broker counts as gone":
    case "broker answers again":
    case "broker is shutting down":
      return `broker ${details.broker} ${what.slice(7)}`;
    case "took over as controller":
      return `took over: ${plural(details.brokers.length, "broker")}, ${plural(details.topics, "topic")}, ${plural(details.partitions, "partition")}`;
    case "controller changed":
      return details.broker < 0 ? "there is no controller" : `broker ${details.broker} is controller`;
    case "topics are being deleted":
      return `deleting ${list(details.topics)}${details.count > details.topics.length ? ` and ${details.count - details.topics.length} more` : ""}`;
    case "reassignment began":
    case "reassignment ended":
      return `${what}: ${details.topic}-${details.partition} to ${list(details.replicas)}`;
    case "replicas failed":
      return `broker ${details.broker} cannot serve ${plural(details.count, "replica")}: ${list(details.partitions)}`;
    default:
      return what;
  }
}

function Change({ each }) {
  const moved = each.leader_before !== each.leader;
  return html`<li>
    <a href=${url("/inside/partitions", [each.topic, each.partition])}>${each.topic}-${each.partition}</a>
    ${" "}${moved ? html`leader ${each.leader_before ?? "none"} → <strong>${each.leader}</strong>, epoch ${each.leader_epoch}` : html`led by ${each.leader}`}, ISR ${each.isr_before ? `${list(each.isr_before)} → ` : ""}${list(each.isr)}
  </li>`;
}

function Decision({ decision }) {
  const { details } = decision;
  const changes = decision.what === "replicas failed" ? [] : (Array.isArray(details.partitions) ? details.partitions : []);
  const reasons = Object.entries(details.reasons ?? {});
  const body = html`<ul>
    ${changes.map((each) => html`<${Change} each=${each} />`)}
    ${reasons.map(([partition, why]) => html`<li>${partition}: ${why}</li>`)}
    ${details.count > changes.length + reasons.length && changes.length + reasons.length > 0 && html`<li class="quiet">and ${count(details.count - changes.length - reasons.length)} more</li>`}
  </ul>`;
  return html`<li class=${`decision ${kindOf(decision)}`}>
    <div class="when"><time datetime=${new Date(decision.at_ms).toISOString()}>${time(decision.at_ms).slice(11)}</time><span class="quiet">broker ${decision.broker}${decision.controller_epoch > 0 && `, epoch ${decision.controller_epoch}`}</span></div>
    <div class="what">
      <strong>${sentence(decision)}</strong>
      <div class="quiet">${decision.why}</div>
      ${changes.length + reasons.length > 3 ? html`<details><summary>${details.count > changes.length + reasons.length ? `the first ${changes.length + reasons.length} of them` : "all of them"}</summary>${body}</details>` : changes.length + reasons.length > 0 && body}
    </div>
  </li>`;
}

function View() {
  const [hidesIsr, setHidesIsr] = useState(false);
  const { data, error } = useLive("/api/inside/controller");
  const decisions = (data?.decisions ?? []).filter((each) => !hidesIsr || each.what !== "ISR changed");
  return html`<${Heading} title="Controller" />
    <p class="quiet">What the <${Term} to="the-controller">controller<//> decided, and why: <${Term} to="an-election">elections<//>, <${Term} to="the-isr-shrinks-and-grows">changes of ISRs<//>, brokers that join and leave. Each broker remembers its own time as controller.</p>
    ${error && html`<${NoInside} error=${error} />`}
    <${Silent} rows=${data?.silent} />
    ${data
      ? html`<${Figures} items=${[["Controller", data.controller === null ? "none" : `broker ${data.controller}`, data.controller === null ? "bad" : ""], ["Epoch", count(data.epoch)], ["Decisions", count(data.decisions.length)]]} />
          <div class="tools"><${Check} label="Without changes of ISRs" checked=${hidesIsr} onChange=${setHidesIsr} /></div>
          ${decisions.length ? html`<ol class="timeline">${decisions.map((each) => html`<${Decision} key=${`${each.broker}/${each.at_ms}/${each.what}`} decision=${each} />`)}</ol>` : html`<p class="quiet empty">There are no decisions yet.</p>`}`
      : !error && html`<${Loading} />`}`;
}

export const page = { path: "/inside/controller", title: "Controller", nav: { label: "Controller", group: "Inside" }, View };
