// Shared parts of the pages under Inside: links to explanations, unavailable brokers, a choice of broker.
import { html } from "./dom.js";
import { useLive } from "./api.js";
import { Choice, Problem } from "./parts.js";

/** A technical term with a link to its explanation: <${Term} to="purgatory">purgatory<//>. */
export function Term({ to, children }) {
  return html`<a class="term" href=${`/docs/inside#${to}`} title="What is this?">${children}</a>`;
}

/** Brokers without internal views, and why. `rows`: [{ broker, error }]. */
export function Silent({ rows }) {
  const silent = (rows ?? []).filter((each) => each.error);
  if (!silent.length) return null;
  return html`<div class="notice silent" role="status">
    ${silent.map((each) => html`<div key=${each.broker}><strong>Broker ${each.broker}</strong> ${each.error}</div>`)}
  </div>`;
}

/** How to enable the internal views if no broker offers them. */
export function NoInside({ error }) {
  return html`<${Problem} error=${error} />
    <p>
      Brokers of barnabas offer these internal views when <code>barnabas.inside.enable=true</code> and <code>barnabas.metrics.port</code> are set.
      <code>barnabas up --console</code> sets both. <a href="/docs/metrics#the-inside-as-json">How it works</a>
    </p>`;
}

export function BrokerChoice({ value, onChange }) {
  const { data } = useLive("/api/inside");
  const options = [["", "all"], ...(data?.brokers ?? []).map((each) => [String(each.broker), `broker ${each.broker}`])];
  return html`<${Choice} label="Broker" value=${value} options=${options} onChange=${onChange} />`;
}
