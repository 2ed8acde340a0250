// Components of the pages.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./dom.js";

export function Problem({ error }) {
  if (!error) return null;
  return html`<div class="problem" role="alert"><strong>${error.code}</strong> ${error.message}</div>`;
}

export const Loading = () => html`<p class="quiet" role="status">Loading…</p>`;

export function Badge({ kind = "plain", children, title }) {
  return html`<span class=${`badge ${kind}`} title=${title}>${children}</span>`;
}

export function Heading({ title, crumbs = [], children }) {
  useEffect(() => {
    document.title = `${title} · barnabas console`;
  }, [title]);
  return html`<header class="heading">
    <div>
      ${crumbs.length > 0 &&
      html`<nav class="crumbs" aria-label="Where you are">${crumbs.map(([label, href]) => html`<a href=${href}>${label}</a><span aria-hidden="true">/</span>`)}</nav>`}
      <h1>${title}</h1>
    </div>
    <div class="actions">${children}</div>
  </header>`;
}

export function Figures({ items }) {
  return html`<dl class="figures">
    ${items.map(([label, value, kind]) => html`<div class=${kind ?? ""} key=${label}><dt>${label}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

export function Tabs({ tabs, current, onChange, label }) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex(([id]) => id === current);
    const next = tabs[(at + step + tabs.length) % tabs.length][0];
    onChange(next);
    event.currentTarget.querySelector(`[data-tab="${next}"]`)?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>
    ${tabs.map(
      ([id, name]) =>
        html`<button key=${id} role="tab" type="button" data-tab=${id} aria-selected=${id === current ? "true" : "false"} tabindex=${id === current ? 0 : -1} onClick=${() => onChange(id)}>${name}</button>`,
    )}
  </div>`;
}

/** A field with its label. Children may be given instead of an input. */
export function Field({ label, hint, children, ...input }) {
  return html`<label class="field"
    ><span>${label}</span>${children ?? html`<input ...${input} />`}${hint && html`<small>${hint}</small>`}</label
  >`;
}

export function Choice({ label, value, options, onChange, ...more }) {
  return html`<label class="field"
    ><span>${label}</span
    ><select value=${value} onChange=${(event) => onChange(event.currentTarget.value)} ...${more}>
      ${options.map((option) => {
        const [id, name] = Array.isArray(option) ? option : [option, option];
        return html`<option key=${id} value=${id} selected=${id === value}>${name}</option>`;
      })}
    </select></label
  >`;
}

export function Check({ label, checked, onChange }) {
  return html`<label class="check"><input type="checkbox" checked=${checked} onChange=${(event) => onChange(event.currentTarget.checked)} />${label}</label>`;
}

/** A search field that reports its text when the user stops typing. */
export function Search({ label, value, onChange, placeholder = "Search" }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  useEffect(() => setText(value), [value]);
  const type = (event) => {
    const next = event.currentTarget.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(next), 200);
  };
  return html`<label class="field search"><span>${label}</span><input type="search" value=${text} placeholder=${placeholder} onInput=${type} /></label>`;
}

/** A modal window; Escape closes it. `onSubmit` makes it a form. */
export function Dialog({ title, onClose, onSubmit, submit = "OK", danger = false, busy = false, error, children }) {
  const ref = useRef(null);
  useEffect(() => {
    ref.current?.showModal();
  }, []);
  const body = html`<h2>${title}</h2>
    <div class="dialog-body">${children}</div>
    <${Problem} error=${error} />
    <footer>
      <button type="button" onClick=${onClose}>${onSubmit ? "Cancel" : "Close"}</button>
      ${onSubmit && html`<button type="submit" class=${danger ? "danger" : "primary"} disabled=${busy}>${submit}</button>`}
    </footer>`;
  return html`<dialog ref=${ref} onClose=${onClose} aria-label=${title}>
    ${onSubmit
      ? html`<form
          onSubmit=${(event) => {
            event.preventDefault();
            onSubmit();
          }}
        >
          ${body}
        </form>`
      : body}
  </dialog>`;
}

/** [run, busy, error]: carries out a change, and keeps its error. */
export function useAction(action) {
  const [state, setState] = useState({ busy: false, error: null });
  const run = async (...args) => {
    setState({ busy: true, error: null });
    try {
      const result = await action(...args);
      setState({ busy: false, error: null });
      return result;
    } catch (error) {
      setState({ busy: false, error });
      return undefined;
    }
  };
  return [run, state.busy, state.error];
}

const ROW = 37;

/**
 * A table of any length: only visible rows (and some around them) are in the document and requested.
 * columns: [{ id, label, sort?, number?, render(row), wide? }]; onWindow(start, count) when other rows become visible.
 */
export function Table({ label, columns, rows, total = rows.length, start = 0, sort, descending, onSort, onWindow, keyOf, empty = "Nothing here." }) {
  const frame = useRef(null);
  const [seen, setSeen] = useState({ first: 0, count: 60 });
  const isWindowed = total > 100;
  useLayoutEffect(() => {
    const look = () => {
      const top = frame.current?.getBoundingClientRect().top ?? 0;
      const first = Math.max(0, Math.floor(-top / ROW) - 20);
      const count = Math.ceil(innerHeight / ROW) + 40;
      const step = 10;
      const rounded = { first: Math.floor(first / step) * step, count: Math.ceil(count / step) * step };
      setSeen((old) => (old.first === rounded.first && old.count === rounded.count ? old : rounded));
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, []);
  useEffect(() => {
    onWindow?.(seen.first, Math.max(seen.count, 100));
  }, [seen.first, seen.count]);
  const from = isWindowed ? Math.max(seen.first, start) : start;
  const to = isWindowed ? Math.min(seen.first + seen.count, start + rows.length) : start + rows.length;
  const shown = rows.slice(Math.max(0, from - start), Math.max(0, to - start));
  const above = (shown.length ? from : 0) * ROW;
  const below = (total - (shown.length ? from + shown.length : 0)) * ROW;
  if (!total) return html`<p class="quiet empty">${empty}</p>`;
  return html`<div class="table" ref=${frame} tabindex="0" role="region" aria-label=${label}>
    <table aria-label=${label} aria-rowcount=${total}>
      <thead>
        <tr>
          ${columns.map((column) => {
            const isSorted = column.sort && column.sort === sort;
            return html`<th key=${column.id} scope="col" class=${column.number ? "number" : ""} aria-sort=${isSorted ? (descending ? "descending" : "ascending") : undefined}>
              ${column.sort && onSort
                ? html`<button type="button" class="sort" onClick=${() => onSort(column.sort, isSorted ? !descending : !!column.number)}>${column.label}<span aria-hidden="true">${isSorted ? (descending ? " ↓" : " ↑") : ""}</span></button>`
                : column.label}
            </th>`;
          })}
        </tr>
      </thead>
      <tbody>
        ${above > 0 && html`<tr aria-hidden="true" class="gap"><td colspan=${columns.length} style=${{ height: `${above}px` }}></td></tr>`}
        ${shown.map(
          (row) => html`<tr key=${keyOf(row)}>
            ${columns.map((column) => html`<td key=${column.id} data-label=${column.label} class=${`${column.number ? "number" : ""} ${column.wide ? "wide" : ""}`}>${column.render(row)}</td>`)}
          </tr>`,
        )}
        ${below > 0 && html`<tr aria-hidden="true" class="gap"><td colspan=${columns.length} style=${{ height: `${below}px` }}></td></tr>`}
      </tbody>
    </table>
  </div>`;
}
