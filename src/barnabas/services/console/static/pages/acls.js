// Access control lists.
import { html, useState } from "../lib/dom.js";
import { change, url, useGet } from "../lib/api.js";
import { useQuery } from "../lib/router.js";
import { useAbout } from "../lib/about.js";
import { plural } from "../lib/format.js";
import { Badge, Choice, Dialog, Field, Heading, Loading, Problem, Search, Table, useAction } from "../lib/parts.js";

function Add({ words, onClose }) {
  const [form, setForm] = useState({ resource: "TOPIC", name: "", pattern: "LITERAL", principal: "User:", host: "*", operation: "READ", permission: "ALLOW" });
  const input = (name) => ({ value: form[name], required: true, onInput: (event) => setForm({ ...form, [name]: event.currentTarget.value }) });
  const choice = (name) => ({ value: form[name], options: words[name], onChange: (value) => setForm({ ...form, [name]: value, ...(value === "CLUSTER" ? { name: "kafka-cluster" } : {}) }) });
  const [run, busy, error] = useAction(async () => {
    await change("POST", "/api/acls", form);
    onClose();
  });
  return html`<${Dialog} title="Add an entry" onClose=${onClose} onSubmit=${run} submit="Add" busy=${busy} error=${error}>
    <${Field} label="Principal" hint="User:ann, or User:* for all" ...${input("principal")} />
    <${Choice} label="Permission" ...${choice("permission")} />
    <${Choice} label="Operation" ...${choice("operation")} />
    <${Choice} label="Resource" ...${choice("resource")} />
    <${Choice} label="Name is" ...${{ ...choice("pattern"), options: [["LITERAL", "the whole name"], ["PREFIXED", "a prefix"]] }} />
    <${Field} label="Name" hint="* for all" ...${input("name")} />
    <${Field} label="Host" hint="* for all" ...${input("host")} />
  <//>`;
}

function Remove({ acl, onClose }) {
  const [run, busy, error] = useAction(async () => {
    await change("DELETE", "/api/acls", acl);
    onClose();
  });
  return html`<${Dialog} title="Remove this entry?" onClose=${onClose} onSubmit=${run} submit="Remove" danger=${true} busy=${busy} error=${error}>
    <p>${acl.permission} ${acl.principal} ${acl.operation} on ${acl.resource} ${acl.pattern === "PREFIXED" ? `${acl.name}…` : acl.name} from ${acl.host}</p>
  <//>`;
}

function View() {
  const [query, set] = useQuery({ search: "" });
  const { data, error } = useGet(url("/api/acls", [], query));
  const about = useAbout();
  const [open, setOpen] = useState(null);
  const columns = [
    { id: "principal", label: "Principal", wide: true, render: (row) => row.principal },
    { id: "permission", label: "Permission", render: (row) => html`<${Badge} kind=${row.permission === "DENY" ? "bad" : "good"}>${row.permission}<//>` },
    { id: "operation", label: "Operation", render: (row) => row.operation },
    { id: "resource", label: "Resource", render: (row) => row.resource },
    { id: "name", label: "Name", wide: true, render: (row) => html`${row.name}${row.pattern === "PREFIXED" && html` <${Badge}>prefix<//>`}` },
    { id: "host", label: "Host", render: (row) => row.host },
    ...(about.readWrite ? [{ id: "remove", label: "", render: (row) => html`<button type="button" class="link" aria-label=${`Remove ${row.operation} of ${row.principal} on ${row.name}`} onClick=${() => setOpen(row)}>Remove</button>` }] : []),
  ];
  return html`<${Heading} title="ACLs">${data && about.readWrite && html`<button type="button" class="primary" onClick=${() => setOpen("add")}>Add entry…</button>`}<//>
    <div class="tools"><${Search} label="Search" value=${query.search} placeholder="Name, principal, resource" onChange=${(search) => set({ search })} /><span class="quiet" role="status">${data ? plural(data.total, "entry", "entries") : ""}</span></div>
    ${error?.code === "SECURITY_DISABLED" ? html`<p class="notice">This cluster has no authorizer: every client may do everything.</p>` : html`<${Problem} error=${error} />`}
    ${data ? html`<${Table} label="ACLs" columns=${columns} rows=${data.acls} keyOf=${(row) => JSON.stringify(row)} empty=${query.search ? "No entry matches." : "There are no entries."} />` : !error && html`<${Loading} />`}
    ${open === "add" && html`<${Add} words=${data.words} onClose=${() => setOpen(null)} />`}
    ${open && open !== "add" && html`<${Remove} acl=${open} onClose=${() => setOpen(null)} />`}`;
}

export const page = { path: "/acls", title: "ACLs", nav: { label: "ACLs", group: "Access" }, View };
