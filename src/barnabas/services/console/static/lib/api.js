// The HTTP API for pages: GETs, changes, and live answers.
import { useEffect, useState, useCallback, useRef } from "./dom.js";

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Path parts and a query, encoded: url("/api/topics", [name], { count: 10 }). Empty values of the query are left out. */
export function url(base, parts = [], query = {}) {
  const path = [base, ...parts.map(encodeURIComponent)].join("/");
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

/** Headers of every change. Sign-in adds its own. */
export const changeHeaders = { "content-type": "application/json" };

async function answer(response) {
  let document;
  try {
    document = await response.json();
  } catch {
    throw new ApiError(response.status, "NO_JSON", `the console answered ${response.status} without JSON`);
  }
  if (response.status === 401 && document.error?.code === "SIGN_IN") dispatchEvent(new Event("console-signed-out"));
  if (!response.ok) throw new ApiError(response.status, document.error?.code ?? "ERROR", document.error?.message ?? "the request failed");
  return document;
}

async function reach(input, init) {
  try {
    return await fetch(input, init);
  } catch {
    throw new ApiError(0, "UNREACHABLE", "the console does not answer: is it still running?");
  }
}

export async function get(path, signal) {
  return answer(await reach(path, { signal }));
}

export async function change(method, path, body) {
  const init = { method, headers: { ...changeHeaders } };
  if (body !== undefined) init.body = JSON.stringify(body);
  const document = await answer(await reach(path, init));
  dispatchEvent(new Event("console-changed"));
  return document;
}

// One stream for the whole page, because a browser allows few connections. It is reopened when the watched paths change.
const watched = new Map();
let stream = null;
let opening = 0;

function reopen() {
  clearTimeout(opening);
  opening = setTimeout(() => {
    stream?.close();
    stream = null;
    if (!watched.size) return;
    const query = [...watched.keys()].map((key) => `watch=${encodeURIComponent(key)}`).join("&");
    stream = new EventSource(`/api/events?${query}`);
    for (const key of watched.keys()) {
      stream.addEventListener(key, (event) => {
        const document = JSON.parse(event.data);
        for (const tell of watched.get(key) ?? []) tell(document);
      });
    }
  }, 30);
}

export function watch(path, tell) {
  if (!watched.has(path)) watched.set(path, new Set());
  watched.get(path).add(tell);
  reopen();
  return () => {
    const those = watched.get(path);
    those?.delete(tell);
    if (those && !those.size) watched.delete(path);
    reopen();
  };
}

/** { data, error, reload } of one GET. With `path` null it sends no request. */
export function useGet(path) {
  const [state, setState] = useState({ data: null, error: null, path: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    get(path, stop.signal).then(
      (data) => setState({ data, error: null, path }),
      (error) => stop.signal.aborted || setState((old) => ({ data: old.path === path ? old.data : null, error, path })),
    );
    return () => stop.abort();
  }, [path, round]);
  const reload = useCallback(() => setRound((n) => n + 1), []);
  useEffect(() => {
    addEventListener("console-changed", reload);
    return () => removeEventListener("console-changed", reload);
  }, [reload]);
  return { data: state.data, error: state.error, isOld: state.path !== path, reload };
}

/** Like useGet, but updates whenever the answer changes. While a new path loads, the old answer stays. */
export function useLive(path) {
  const first = useGet(path);
  const [state, setState] = useState({ data: null, error: null, path: null });
  const latest = useRef(path);
  latest.current = path;
  useEffect(() => {
    if (!path) return undefined;
    return watch(path, (document) => {
      if (latest.current !== path) return;
      if (document.error) setState((old) => ({ ...old, error: new ApiError(0, document.error.code, document.error.message), path }));
      else setState({ data: document, error: null, path });
    });
  }, [path]);
  const live = state.path === path && (state.data || state.error) ? state : null;
  return { ...first, ...(live ? { data: live.data ?? first.data, error: live.error, isOld: false } : {}) };
}
