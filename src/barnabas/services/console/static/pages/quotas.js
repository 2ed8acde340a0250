// Limits for clients.
import { html, useState } from "../lib/dom.js";
import { change, useGet } from "../lib/api.js";
import { useAbout } from "../lib/about.js";
import { count, rate, size } from "../lib/format.js";
import { Choice, Dialog, Field, Heading, Loading, Problem, Table, useAction } from "../lib/parts.js";

const SHOWN = {
  producer_byte_rate: ["Produces", (n) => `${size(n)}/s`],
  consumer_byte_rate: ["Consumes", (n) => `${size(n)}/s`],
  request_percentage: ["Request time", (n) => `${n} %`],
  controller_mutation_rate: ["Changes", rate],
  connection_creation_rate: ["Connections", rate],
};

const entityText = (entity) => Object.entries(entity).map(([kind, name]) => `${kind} ${name ?? "(default)"}`).join(", ");

function Edit({ row, onClose }) {
  const [form, setForm] = useState(row ?? { entity: { user: "" }, quotas: {} });
  const [kind, setKind] = useState(row ? "" : "user");
  const [second, setSecond] = useState("");
  const [isDefault, setDefault] = useState(false);
  const [name, setName] = useState("");
  const [values, setValues] = useState(Object.fromEntries(Object.keys(SHOWN).map((key) => [key, form.quotas[key] ?? ""])));
  const [run, busy, error] = useAction(async () => {
    const entity = row ? row.entity : { [kind]: isDefault ? null : name, ...(kind === "user" && second ? { "client-id": second } : {}) };
    const quotas = Object.fromEntries(Object.entries(values).filter(([key, value]) => String(value) !== String(form.quotas[key] ?? "")).map(([key, value]) => [key, value === "" ? null : Number(value)]));
    if (Object.keys(quotas).length) await change("PATCH", "/api/quotas", { entity, quotas });
    onClose();
  });
  return html`<${Dialog} title=${row ? `Quotas of ${entityText(row.entity)}` : "Set a quota"} onClose=${onClose} onSubmit=${run} submit="Set" busy=${busy} error=${error}>
    ${!row &&
    html`<${Choice} label="For" value=${kind} options=${[["user", "a user"], ["client-id", "a client id"], ["ip", "an address"]]} onChange=${setKind} />
      <label class="check"><input type="checkbox" checked=${isDefault} onChange=${(event) => setDefault(event.currentTarget.checked)} />Default: for all without a quota of their own</label>
      ${!isDefault && html`<${Field} label="Name" required value=${name} onInput=${(event) => setName(event.currentTarget.value)} />`}
      ${kind === "user" && html`<${Field} label="Only with this client id" hint="Optional" value=${second} onInput=${(event) => setSecond(event.currentTarget.value)} />`}`}
    ${Object.entries(SHOWN)
      .filter(([key]) => (key === "connection_creation_rate") === ((row ? "ip" in row.entity : kind === "ip")))
      .map(([key, [label]]) => html`<${Field} key=${key} label=${`${label} (${key})`} type="number" step="any" min="0" hint="Leave empty for no limit" value=${values[key]} onInput=${(event) => setValues({ ...values, [key]: event.currentTarget.value })} />`)}
  <//>`;
}

function View() {
  const { data, error } = useGet("/api/quotas");
  const about = useAbout();
  const [open, setOpen] = useState(null);
  const columns = [
    { id: "entity", label: "Of", wide: true, render: (row) => entityText(row.entity) },
    ...Object.entries(SHOWN).map(([key, [label, show]]) => ({ id: key, label, number: true, render: (row) => (row.quotas[key] === undefined ? "–" : show(row.quotas[key])) })),
    ...(about.readWrite ? [{ id: "edit", label: "", render: (row) => html`<button type="button" class="link" aria-label=${`Change quotas of ${entityText(row.entity)}`} onClick=${() => setOpen(row)}>Change</button>` }] : []),
  ];
  return html`<${Heading} title="Quotas">${about.readWrite && html`<button type="button" class="primary" onClick=${() => setOpen("new")}>Set quota…</button>`}<//>
    <${Problem} error=${error} />
    ${data ? html`<${Table} label="Quotas" columns=${columns} rows=${data.quotas} keyOf=${(row) => JSON.stringify(row.entity)} empty="There are no quotas: no client is limited." />` : !error && html`<${Loading} />`}
    ${open && html`<${Edit} row=${open === "new" ? null : open} onClose=${() => setOpen(null)} />`}
    ${data && html`<p class="quiet">${count(data.quotas.length)} set.</p>`}`;
}

export const page = { path: "/quotas", title: "Quotas", nav: { label: "Quotas", group: "Access" }, View };
