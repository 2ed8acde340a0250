// A page of the documentation. Terms on other pages link to its headings.
import { html, useEffect } from "../lib/dom.js";
import { url, useGet } from "../lib/api.js";
import { Loading, Problem } from "../lib/parts.js";
import { Markdown } from "../lib/markdown.js";

function View({ name }) {
  const { data, error } = useGet(url("/api/docs", [name]));
  useEffect(() => {
    if (!data) return undefined;
    document.title = `${data.text.match(/^# (.*)/m)?.[1] ?? name} · barnabas console`;
    const find = () => {
      const heading = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (!heading) return;
      document.querySelectorAll(".prose .found").forEach((each) => each.classList.remove("found"));
      heading.classList.add("found");
      heading.scrollIntoView();
    };
    find();
    addEventListener("console-moved", find);
    addEventListener("hashchange", find);
    return () => {
      removeEventListener("console-moved", find);
      removeEventListener("hashchange", find);
    };
  }, [data]);
  const link = (target) => {
    if (/^https?:/.test(target)) return target;
    const [file, hash] = target.split("#");
    const found = file ? new URL(file, `${location.origin}/${name.replaceAll(".", "/")}`).pathname.slice(1) : name;
    const page = found.replace(/\.md$/, "").replaceAll("/", ".");
    return data.pages.includes(page) ? `/docs/${page}${hash ? `#${hash}` : ""}` : null;
  };
  if (error) return html`<${Problem} error=${error} />`;
  return data ? html`<${Markdown} text=${data.text} link=${link} />` : html`<${Loading} />`;
}

const Start = () => html`<${View} name="index" />`;

export const start = { path: "/docs", title: "Documentation", View: Start, nav: { group: "Help", label: "Documentation" } };
export const page = { path: "/docs/:name", title: "Documentation", View };
