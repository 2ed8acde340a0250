// Subjects of the schema registry with their versions and schemas.
import { html, useEffect, useState } from "../lib/dom.js";
import { change, get, url, useGet } from "../lib/api.js";
import { useQuery } from "../lib/router.js";
import { useAbout } from "../lib/about.js";
import { pretty } from "../lib/json.js";
import { plural } from "../lib/format.js";
import { Badge, Choice, Dialog, Field, Figures, Heading, Loading, Problem, Search, Table, useAction } from "../lib/parts.js";

const noRegistry = (error) => error?.code === "NO_REGISTRY" && html`<p class="notice">The console was started without <code>--schema-registry URL</code>, so it cannot show schemas.</p>`;

function Register({ subject, type, schema, onClose }) {
  const [form, setForm] = useState({ subject: subject ?? "", type: type ?? "AVRO", schema: schema ?? "" });
  const [verdict, setVerdict] = useState(null);
  const set = (changes) => {
    setForm({ ...form, ...changes });
    setVerdict(null);
  };
  const [run, busy, error] = useAction(async () => {
    await change("POST", url("/api/subjects", [form.subject, "versions"]), { schema: form.schema, type: form.type });
    onClose();
  });
  const [check, isChecking, problem] = useAction(async () => setVerdict(await get(url("/api/subjects", [form.subject, "check"], { schema: form.schema, type: form.type }))));
  return html`<${Dialog} title=${subject ? `A new version of ${subject}` : "Register a schema"} onClose=${onClose} onSubmit=${run} submit="Register" busy=${busy} error=${error ?? problem}>
    ${!subject && html`<${Field} label="Subject" required hint="Usually TOPIC-value or TOPIC-key" value=${form.subject} onInput=${(event) => set({ subject: event.currentTarget.value })} />`}
    <${Choice} label="Type" value=${form.type} options=${["AVRO", "JSON", "PROTOBUF"]} onChange=${(value) => set({ type: value })} />
    <${Field} label="Schema"><textarea rows="12" required spellcheck=${false} value=${form.schema} onInput=${(event) => set({ schema: event.currentTarget.value })}></textarea><//>
    ${subject && html`<p class="row"><button type="button" disabled=${isChecking} onClick=${check}>Check compatibility</button>${verdict && html`<${Badge} kind=${verdict.isCompatible ? "good" : "bad"}>${verdict.isCompatible ? "compatible" : "not compatible"}<//>`}</p>`}
    ${verdict?.messages.length > 0 && html`<pre>${verdict.messages.join("\n")}</pre>`}
  <//>`;
}

function View() {
  const [query, set] = useQuery({ search: "" });
  const { data, error } = useGet(url("/api/subjects", [], query));
  const about = useAbout();
  const [isOpen, setOpen] = useState(false);
  const columns = [{ id: "subject", label: "Subject", wide: true, render: (row) => html`<a href=${url("/schemas", [row])}>${row}</a>` }];
  return html`<${Heading} title="Schemas">${data && about.readWrite && html`<button type="button" class="primary" onClick=${() => setOpen(true)}>Register…</button>`}<//>
    ${noRegistry(error) || html`<${Problem} error=${error} />`}
    ${!noRegistry(error) && html`<div class="tools"><${Search} label="Search" value=${query.search} placeholder="Part of a subject" onChange=${(search) => set({ search })} /><span class="quiet" role="status">${data ? plural(data.total, "subject") : ""}</span></div>`}
    ${data ? html`<${Table} label="Subjects" columns=${columns} rows=${data.subjects} keyOf=${(row) => row} empty=${query.search ? "No subject matches." : "There are no schemas yet."} />` : !error && html`<${Loading} />`}
    ${isOpen && html`<${Register} onClose=${() => setOpen(false)} />`}`;
}

function Subject({ subject }) {
  const { data, error } = useGet(url("/api/subjects", [subject]));
  const [version, setVersion] = useState(null);
  const [found, setFound] = useState({ data: null, error: null });
  const [isOpen, setOpen] = useState(false);
  const about = useAbout();
  const shown = version ?? data?.versions.at(-1);
  useEffect(() => {
    if (!shown) return undefined;
    const stop = new AbortController();
    get(url("/api/subjects", [subject, "versions", shown]), stop.signal).then(
      (answer) => setFound({ data: answer, error: null }),
      (failure) => stop.signal.aborted || setFound({ data: null, error: failure }),
    );
    return () => stop.abort();
  }, [subject, shown]);
  return html`<${Heading} title=${subject} crumbs=${[["Schemas", "/schemas"]]}>${found.data && about.readWrite && html`<button type="button" onClick=${() => setOpen(true)}>New version…</button>`}<//>
    ${noRegistry(error) || html`<${Problem} error=${error ?? found.error} />`}
    ${data && found.data
      ? html`<${Figures} items=${[["Versions", data.versions.length], ["Compatibility", data.compatibility ?? "–"], ["Type", found.data.type], ["Id", found.data.id]]} />
          <div class="tools"><${Choice} label="Version" value=${String(shown)} options=${data.versions.map(String).reverse()} onChange=${(value) => setVersion(Number(value))} /></div>
          ${found.data.references.length > 0 && html`<p>Refers to: ${found.data.references.map((each) => html`<a key=${each.name} href=${url("/schemas", [each.subject])}>${each.name}</a> `)}</p>`}
          <pre class="panel" tabindex="0">${found.data.type === "PROTOBUF" ? found.data.schema : pretty(found.data.schema)}</pre>
          ${isOpen && html`<${Register} subject=${subject} type=${found.data.type} schema=${found.data.type === "PROTOBUF" ? found.data.schema : pretty(found.data.schema)} onClose=${() => {
            setVersion(null);
            setOpen(false);
          }} />`}`
      : !error && !found.error && html`<${Loading} />`}`;
}

export const page = { path: "/schemas", title: "Schemas", nav: { label: "Schemas" }, View };
export const subjectPage = { path: "/schemas/:subject", title: "Schema", View: Subject };
