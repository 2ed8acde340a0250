// Render the Markdown of our own pages as elements: headings with anchors, paragraphs, lists, tables, code. Text never becomes markup.
import { html } from "./dom.js";

/** Anchors like GitHub's. */
export const anchor = (text) =>
  text
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, "")
    .trim()
    .replace(/\s/g, "-");

const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^\]]+)\]\(([^)\s]+)\)/g;

/** `link(target)` returns the address of a link, or null if there is no such page. */
function inline(text, link) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > at) parts.push(text.slice(at, found.index));
    const [whole, code, strong, em, label, target] = found;
    if (code !== undefined) parts.push(html`<code>${code}</code>`);
    else if (strong !== undefined) parts.push(html`<strong>${inline(strong, link)}</strong>`);
    else if (em !== undefined) parts.push(html`<em>${em}</em>`);
    else {
      const href = link(target);
      parts.push(href ? html`<a href=${href}>${inline(label, link)}</a>` : html`<span>${inline(label, link)}</span>`);
    }
    at = found.index + whole.length;
  }
  if (at < text.length) parts.push(text.slice(at));
  return parts;
}

const cells = (line) => line.replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));

export function Markdown({ text, link }) {
  const lines = text.split("\n");
  const out = [];
  let at = 0;
  const isBlock = (line) => /^(#{1,4} |```|\||[-*] |\d+\. )/.test(line);
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
    } else if (line.startsWith("```")) {
      const code = [];
      for (at += 1; at < lines.length && !lines[at].startsWith("```"); at += 1) code.push(lines[at]);
      at += 1;
      // Drawing a diagram would need a library; the text around it says the same.
      if (!line.startsWith("```mermaid")) out.push(html`<pre class="data" tabindex="0">${code.join("\n")}</pre>`);
    } else if (/^#{1,4} /.test(line)) {
      const level = line.indexOf(" ");
      const title = line.slice(level + 1);
      out.push(html`<${`h${Math.min(level, 4)}`} id=${anchor(title.replace(/[`*]/g, ""))}>${inline(title, link)}<//>`);
      at += 1;
    } else if (line.startsWith("|")) {
      const rows = [];
      for (; at < lines.length && lines[at].startsWith("|"); at += 1) rows.push(cells(lines[at]));
      const [head, , ...body] = rows;
      out.push(html`<div class="table" tabindex="0"><table>
        <thead><tr>${head.map((cell) => html`<th scope="col">${inline(cell, link)}</th>`)}</tr></thead>
        <tbody>${body.map((row) => html`<tr>${row.map((cell) => html`<td class="wide">${inline(cell, link)}</td>`)}</tr>`)}</tbody>
      </table></div>`);
    } else if (/^([-*]|\d+\.) /.test(line)) {
      const items = [];
      const isOrdered = /^\d/.test(line);
      for (; at < lines.length && lines[at].trim() && !/^(#|```|\|)/.test(lines[at]); at += 1) {
        const item = lines[at].match(/^(?:[-*]|\d+\.) (.*)/);
        if (item) items.push(item[1]);
        else items[items.length - 1] += ` ${lines[at].trim()}`;
      }
      out.push(html`<${isOrdered ? "ol" : "ul"}>${items.map((item) => html`<li>${inline(item, link)}</li>`)}<//>`);
    } else {
      const words = [];
      for (; at < lines.length && lines[at].trim() && !isBlock(lines[at]); at += 1) words.push(lines[at].trim());
      out.push(html`<p>${inline(words.join(" "), link)}</p>`);
    }
  }
  return html`<div class="prose">${out}</div>`;
}
