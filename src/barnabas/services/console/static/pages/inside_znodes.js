// ZooKeeper's tree: open a branch and choose a znode to see its data, its owner and its watchers.
import { html, useState } from "../lib/dom.js";
import { url, useGet, useLive } from "../lib/api.js";
import { useQuery } from "../lib/router.js";
import { count, duration, size, time } from "../lib/format.js";
import { Badge, Heading, Loading, Problem } from "../lib/parts.js";
import { NoInside, Term } from "../lib/inside.js";

const join = (path, name) => (path === "/" ? `/${name}` : `${path}/${name}`);

function Branch({ path, name, chosen, choose, depth }) {
  const [isOpen, setOpen] = useState(depth === 0 || chosen.startsWith(path === "/" ? "/" : `${path}/`));
  const { data, error } = useGet(isOpen ? url("/api/inside/znode", [], { path }) : null);
  return html`<li>
    <div class="node">
      <button type="button" class="link fold" aria-label=${`${isOpen ? "Close" : "Open"} ${path}`} aria-expanded=${isOpen ? "true" : "false"} onClick=${() => setOpen(!isOpen)}>${isOpen ? "▾" : "▸"}</button>
      <button type="button" class="link" aria-current=${path === chosen ? "true" : undefined} onClick=${() => choose(path)}>${name}</button>
      ${data && html` <span class="quiet">${data.children.length + data.children_left_out > 0 ? count(data.children.length + data.children_left_out) : ""}</span>`}
    </div>
    ${isOpen && error && html`<${Problem} error=${error} />`}
    ${isOpen &&
    data &&
    data.children.length > 0 &&
    html`<ul>
      ${data.children.map((child) => html`<${Branch} key=${child} path=${join(path, child)} name=${child} chosen=${chosen} choose=${choose} depth=${depth + 1} />`)}
      ${data.children_left_out > 0 && html`<li class="quiet">and ${count(data.children_left_out)} more</li>`}
    </ul>`}
  </li>`;
}

function Detail({ path }) {
  const { data, error } = useLive(url("/api/inside/znode", [], { path }));
  if (error) return html`<${Problem} error=${error} />`;
  if (!data || data.path !== path) return html`<${Loading} />`;
  const text = typeof data.data === "string" ? data.data : JSON.stringify(data.data, null, 2);
  return html`<h2 class="mono">${path}</h2>
    <p>
      ${data.ephemeral_owner
        ? html`<${Badge} kind="accent">ephemeral<//> of ${data.owner === null ? "another session" : `broker ${data.owner}`} <span class="quiet mono">${data.ephemeral_owner}</span>`
        : html`<${Badge}>persistent<//>`}
    </p>
    <dl class="facts">
      <div><dt>Version</dt><dd>${count(data.version)}</dd></div>
      <div><dt>Size</dt><dd>${size(data.size_bytes)}</dd></div>
      <div><dt>Changed</dt><dd>${data.mtime_ms ? html`${time(data.mtime_ms)} <span class="quiet">${duration(Date.now() - data.mtime_ms)} ago</span>` : "–"}</dd></div>
      <div><dt>Created by</dt><dd class="mono">zxid 0x${data.czxid.toString(16)}</dd></div>
      <div><dt>Watched by</dt><dd>${data.watchers.length ? data.watchers.map((each, at) => html`${at > 0 && ", "}broker ${each.broker} <span class="quiet">(${each.what.join(", ")})</span>`) : "no broker"}</dd></div>
      <div><dt>Children</dt><dd>${count(data.children.length + data.children_left_out)}</dd></div>
    </dl>
    ${data.data === null ? html`<p class="quiet">It has no data.</p>` : html`<pre class="data" tabindex="0" aria-label="Data">${text}</pre>`}`;
}

function View() {
  const [query, set] = useQuery({ path: "/" });
  const sources = useLive("/api/inside");
  if (sources.error || (sources.data && !sources.data.isAvailable)) return html`<${Heading} title="Znodes" /><${NoInside} error=${sources.error} />`;
  return html`<${Heading} title="Znodes" />
    <p class="quiet">What the brokers keep in ZooKeeper. An <${Term} to="membership-ephemeral-znodes">ephemeral<//> znode lives as long as its owner's session. A <${Term} to="watches">watch<//> notifies a broker of a change. Credentials are hidden.</p>
    <div class="tree-and-detail">
      <nav class="tree panel" aria-label="Znodes"><ul><${Branch} path="/" name="/" chosen=${query.path} choose=${(path) => set({ path })} depth=${0} /></ul></nav>
      <section class="panel detail" aria-live="off"><${Detail} key=${query.path} path=${query.path} /></section>
    </div>`;
}

export const page = { path: "/inside/znodes", title: "Znodes", nav: { label: "Znodes", group: "Inside" }, View };
