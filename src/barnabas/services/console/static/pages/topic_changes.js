// Dialogs that change topics: create, settings, add partitions, delete records, delete.
import { html, useState } from "../lib/dom.js";
import { change, url, useGet } from "../lib/api.js";
import { go } from "../lib/router.js";
import { useAbout } from "../lib/about.js";
import { count, plural } from "../lib/format.js";
import { Badge, Check, Dialog, Field, Loading, Problem, Search, Table, useAction } from "../lib/parts.js";

export function CreateTopic({ onClose }) {
  const { data } = useGet("/api/topic-settings");
  const [form, setForm] = useState({ name: "", partitions: "", replicas: "", settings: "" });
  const set = (changes) => setForm({ ...form, ...changes });
  const [run, busy, error] = useAction(async () => {
    const settings = {};
    for (const line of form.settings.split("\n").filter((each) => each.trim())) {
      const at = line.indexOf("=");
      settings[(at < 0 ? line : line.slice(0, at)).trim()] = at < 0 ? "" : line.slice(at + 1).trim();
    }
    await change("POST", "/api/topics", { name: form.name, settings, ...(form.partitions ? { partitions: Number(form.partitions) } : {}), ...(form.replicas ? { replicas: Number(form.replicas) } : {}) });
    go(url("/topics", [form.name]));
  });
  const input = (name) => ({ value: form[name], onInput: (event) => set({ [name]: event.currentTarget.value }) });
  return html`<${Dialog} title="Create a topic" onClose=${onClose} onSubmit=${run} submit="Create" busy=${busy} error=${error}>
    <${Field} label="Name" required pattern="[a-zA-Z0-9._\\-]+" maxlength="249" hint="Letters, digits, dot, underscore, hyphen" ...${input("name")} />
    <${Field} label="Partitions" type="number" min="1" hint="Leave empty for the cluster's default" ...${input("partitions")} />
    <${Field} label="Replicas" type="number" min="1" hint="Leave empty for the cluster's default" ...${input("replicas")} />
    <${Field} label="Settings" hint="One per line: name=value"><textarea rows="4" placeholder="retention.ms=86400000" value=${form.settings} onInput=${(event) => set({ settings: event.currentTarget.value })}></textarea><//>
    <details><summary>Available settings</summary>
      <dl class="known">${(data?.settings ?? []).map((each) => html`<div key=${each.name}><dt class="mono">${each.name}${each.default !== null && html`<span class="quiet">=${each.default}</span>`}</dt><dd>${each.about}</dd></div>`)}</dl>
    </details>
  <//>`;
}

function Edit({ topic, setting, onClose }) {
  const [value, setValue] = useState(setting.value ?? "");
  const path = url("/api/topics", [topic, "settings"]);
  const [run, busy, error] = useAction(async (next) => {
    await change("PATCH", path, { settings: { [setting.name]: next } });
    onClose();
  });
  return html`<${Dialog} title=${setting.name} onClose=${onClose} onSubmit=${() => run(value)} submit="Set" busy=${busy} error=${error}>
    <p class="prose">${setting.about}</p>
    <${Field} label="Value" value=${value} onInput=${(event) => setValue(event.currentTarget.value)} />
    <p class="quiet">Default: ${setting.default ?? "–"}. Now from: ${setting.origin}.</p>
    ${setting.origin === "topic" && html`<p><button type="button" disabled=${busy} onClick=${() => run(null)}>Remove, so that the default applies</button></p>`}
  <//>`;
}

export function Settings({ topic }) {
  const { data, error } = useGet(url("/api/topics", [topic, "settings"]));
  const [search, setSearch] = useState("");
  const [isOwn, setOwn] = useState(false);
  const [edited, setEdited] = useState(null);
  const about = useAbout();
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  const rows = data.settings.filter((each) => each.name.includes(search.toLowerCase()) && (!isOwn || !each.isDefault));
  const columns = [
    { id: "name", label: "Setting", wide: true, render: (row) => html`<span class="mono" title=${row.about}>${row.name}</span>` },
    { id: "value", label: "Value", wide: true, render: (row) => (row.sensitive ? html`<em class="quiet">hidden</em>` : html`<span class="mono">${row.value === "" ? "(empty)" : row.value}</span>`) },
    { id: "default", label: "Default", wide: true, render: (row) => html`<span class="mono quiet">${row.default === "" ? "(empty)" : (row.default ?? "–")}</span>` },
    { id: "origin", label: "From", render: (row) => html`<${Badge} kind=${row.isDefault ? "plain" : "warn"}>${row.origin}<//>` },
    ...(about.readWrite ? [{ id: "edit", label: "", render: (row) => !row.readOnly && html`<button type="button" class="link" aria-label=${`Change ${row.name}`} onClick=${() => setEdited(row)}>Change</button>` }] : []),
  ];
  return html`<div class="tools"><${Search} label="Search" value=${search} placeholder="Part of a name" onChange=${setSearch} /><${Check} label="Only changed settings" checked=${isOwn} onChange=${setOwn} /></div>
    <${Table} label="Settings" columns=${columns} rows=${rows} keyOf=${(row) => row.name} empty="No setting matches." />
    ${edited && html`<${Edit} topic=${topic} setting=${edited} onClose=${() => setEdited(null)} />`}`;
}

export function AddPartitions({ topic, now, onClose }) {
  const [wanted, setWanted] = useState(now + 1);
  const [run, busy, error] = useAction(async () => {
    await change("POST", url("/api/topics", [topic, "partitions"]), { partitions: Number(wanted) });
    onClose();
  });
  return html`<${Dialog} title=${`Add partitions to ${topic}`} onClose=${onClose} onSubmit=${run} submit="Add" busy=${busy} error=${error}>
    <p>It has ${plural(now, "partition")}. Records with a key may go to another partition than before; partitions cannot be removed again.</p>
    <${Field} label="Partitions afterwards" type="number" min=${now + 1} required value=${wanted} onInput=${(event) => setWanted(event.currentTarget.value)} />
  <//>`;
}

export function DeleteRecords({ topic, partitions, onClose }) {
  const [form, setForm] = useState({ partition: "all", offset: "" });
  const chosen = form.partition === "all" ? partitions : partitions.filter((each) => String(each.partition) === form.partition);
  const [run, busy, error] = useAction(async () => {
    await change("POST", url("/api/topics", [topic, "delete-records"]), { partitions: chosen.map((each) => ({ partition: each.partition, offset: form.offset === "" ? null : Number(form.offset) })) });
    onClose();
  });
  const gone = chosen.reduce((sum, each) => sum + Math.max(0, (form.offset === "" ? each.end : Math.min(Number(form.offset), each.end)) - each.start), 0);
  return html`<${Dialog} title=${`Delete records of ${topic}`} onClose=${onClose} onSubmit=${run} submit=${`Delete ${plural(gone, "record")}`} danger=${true} busy=${busy} error=${error}>
    <${Field} label="Partition"><select value=${form.partition} onChange=${(event) => setForm({ ...form, partition: event.currentTarget.value })}><option value="all">all</option>${partitions.map((each) => html`<option key=${each.partition} value=${String(each.partition)}>${each.partition} (${count(each.start)} to ${count(each.end)})</option>`)}</select><//>
    <${Field} label="Before offset" type="number" min="0" hint="Leave empty to delete all records" value=${form.offset} onInput=${(event) => setForm({ ...form, offset: event.currentTarget.value })} />
    <p>Consumers that have not read these records will miss them. This cannot be undone.</p>
  <//>`;
}

export function DeleteTopic({ topic, onClose }) {
  const [typed, setTyped] = useState("");
  const [run, busy, error] = useAction(async () => {
    await change("DELETE", url("/api/topics", [topic]));
    go("/topics");
  });
  return html`<${Dialog} title=${`Delete ${topic}?`} onClose=${onClose} onSubmit=${run} submit="Delete" danger=${true} busy=${busy || typed !== topic} error=${error}>
    <p>This deletes all its records, and cannot be undone.</p>
    <${Field} label=${`Type ${topic} to confirm`} value=${typed} autocomplete="off" onInput=${(event) => setTyped(event.currentTarget.value)} />
  <//>`;
}
