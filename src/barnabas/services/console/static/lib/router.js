// Pages by path, with the browser's history. Links are ordinary <a href>: the router handles the clicks.
import { useEffect, useState } from "./dom.js";

export function go(path, { replace = false } = {}) {
  if (path === location.pathname + location.search + location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", path);
  dispatchEvent(new Event("console-moved"));
}

export function useLocation() {
  const [at, setAt] = useState({ path: location.pathname, query: location.search });
  useEffect(() => {
    const move = () => setAt({ path: location.pathname, query: location.search });
    const click = (event) => {
      const link = event.target.closest?.("a[href]");
      if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
      if (link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
      if (link.pathname.startsWith("/api") || link.pathname.startsWith("/static")) return;
      event.preventDefault();
      go(link.pathname + link.search + link.hash);
      if (!link.hash) scrollTo(0, 0);
    };
    addEventListener("popstate", move);
    addEventListener("console-moved", move);
    document.addEventListener("click", click);
    return () => {
      removeEventListener("popstate", move);
      removeEventListener("console-moved", move);
      document.removeEventListener("click", click);
    };
  }, []);
  return at;
}

/** The parameters of "/topics/:topic" in a path, or null. */
export function match(pattern, path) {
  const wanted = pattern.split("/").filter(Boolean);
  const parts = path.split("/").filter(Boolean);
  if (wanted.length !== parts.length) return null;
  const found = {};
  for (let i = 0; i < wanted.length; i += 1) {
    if (wanted[i].startsWith(":")) found[wanted[i].slice(1)] = decodeURIComponent(parts[i]);
    else if (wanted[i] !== parts[i]) return null;
  }
  return found;
}

/** State that a page keeps in its address: [values, set]. Default values are left out. */
export function useQuery(defaults) {
  const { query } = useLocation();
  const given = new URLSearchParams(query);
  const values = Object.fromEntries(Object.entries(defaults).map(([name, value]) => [name, given.get(name) ?? value]));
  const set = (changes) => {
    const next = { ...values, ...changes };
    const kept = Object.entries(next).filter(([name, value]) => value !== undefined && String(value) !== String(defaults[name]));
    go(location.pathname + (kept.length ? `?${new URLSearchParams(kept)}` : ""), { replace: true });
  };
  return [values, set];
}
