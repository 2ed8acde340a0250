// Users with SCRAM passwords. Passwords are never shown.
import { html, useState } from "../lib/dom.js";
import { change, url, useGet } from "../lib/api.js";
import { useAbout } from "../lib/about.js";
import { Badge, Choice, Dialog, Field, Heading, Loading, Problem, Table, useAction } from "../lib/parts.js";

function Password({ user, mechanisms, onClose }) {
  const [form, setForm] = useState({ user: user ?? "", mechanism: mechanisms.at(-1), password: "" });
  const [run, busy, error] = useAction(async () => {
    await change("PUT", url("/api/users", [form.user]), { mechanism: form.mechanism, password: form.password });
    onClose();
  });
  return html`<${Dialog} title=${user ? `Password of ${user}` : "Add a user"} onClose=${onClose} onSubmit=${run} submit="Set" busy=${busy} error=${error}>
    ${!user && html`<${Field} label="User" required autocomplete="off" value=${form.user} onInput=${(event) => setForm({ ...form, user: event.currentTarget.value })} />`}
    <${Choice} label="Mechanism" value=${form.mechanism} options=${mechanisms} onChange=${(mechanism) => setForm({ ...form, mechanism })} />
    <${Field} label="Password" type="password" required autocomplete="new-password" value=${form.password} onInput=${(event) => setForm({ ...form, password: event.currentTarget.value })} />
  <//>`;
}

function Remove({ user, mechanism, onClose }) {
  const [run, busy, error] = useAction(async () => {
    await change("DELETE", url("/api/users", [user, mechanism]));
    onClose();
  });
  return html`<${Dialog} title=${`Remove ${mechanism} of ${user}?`} onClose=${onClose} onSubmit=${run} submit="Remove" danger=${true} busy=${busy} error=${error}><p>The user can no longer sign in with it.</p><//>`;
}

function View() {
  const { data, error } = useGet("/api/users");
  const about = useAbout();
  const [open, setOpen] = useState(null);
  const close = () => setOpen(null);
  const columns = [
    { id: "user", label: "User", wide: true, render: (row) => row.user },
    {
      id: "credentials",
      label: "Passwords",
      wide: true,
      render: (row) =>
        row.credentials.map(
          (each) => html`<span key=${each.mechanism} class="row"><${Badge}>${each.mechanism}<//> <span class="quiet">${each.iterations} iterations</span>
            ${about.readWrite && html`<button type="button" class="link" aria-label=${`Remove ${each.mechanism} of ${row.user}`} onClick=${() => setOpen({ user: row.user, mechanism: each.mechanism })}>Remove</button>`}</span>`,
        ),
    },
    ...(about.readWrite ? [{ id: "edit", label: "", render: (row) => html`<button type="button" class="link" aria-label=${`Set password of ${row.user}`} onClick=${() => setOpen({ user: row.user })}>Set password</button>` }] : []),
  ];
  return html`<${Heading} title="Users">${data && about.readWrite && html`<button type="button" class="primary" onClick=${() => setOpen({})}>Add user…</button>`}<//>
    <${Problem} error=${error} />
    ${data ? html`<${Table} label="Users" columns=${columns} rows=${data.users} keyOf=${(row) => row.user} empty="No user has a SCRAM password." />` : !error && html`<${Loading} />`}
    ${open && (open.mechanism ? html`<${Remove} ...${open} onClose=${close} />` : html`<${Password} user=${open.user} mechanisms=${data.mechanisms} onClose=${close} />`)}`;
}

export const page = { path: "/users", title: "Users", nav: { label: "Users", group: "Access" }, View };
