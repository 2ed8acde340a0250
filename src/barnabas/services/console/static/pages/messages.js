// The messages of a topic: a page, a search, or new messages as they arrive.
import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { change, get, url } from "../lib/api.js";
import { open } from "../lib/stream.js";
import { useQuery } from "../lib/router.js";
import { useAbout } from "../lib/about.js";
import { isStructured, pretty } from "../lib/json.js";
import { count, duration, plural, size, time } from "../lib/format.js";
import { Badge, Check, Choice, Dialog, Field, Loading, Problem, useAction } from "../lib/parts.js";

const FORMATS = ["auto", "text", "json", "registry", "number", "hex", "base64"];
const DEFAULTS = { from: "newest", offset: "0", time: "", partition: "", count: "50", key: "auto", value: "auto", isolation: "read_uncommitted", text: "", filter: "" };
const LIVE_ROWS = 200;
const LIVE_MS = 300;
const REASONS = {
  all: "Searched everything.",
  enough: "Stopped at the number of matches asked for.",
  time: "Stopped: the time for a search is up.",
  records: "Stopped: the most records that a search reads.",
  bytes: "Stopped: the most bytes that a search reads.",
  stopped: "Stopped.",
};

function localTime(ms) {
  const at = new Date(Number(ms) || Date.now() - 3600e3);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60e3).toISOString().slice(0, 19);
}

function Piece({ piece, isWhole }) {
  if (piece.format === "null") return html`<em class="quiet">null</em>`;
  if (piece.text === "" && !piece.size) return html`<em class="quiet">empty</em>`;
  if (!isWhole) return html`<span class="mono">${piece.text.slice(0, 300)}</span>`;
  return html`<pre tabindex="0">${isStructured(piece) && !piece.truncated ? pretty(piece.text) : piece.text}</pre>`;
}

function Detail({ topic, record, formats }) {
  const [whole, setWhole] = useState(record);
  const [error, setError] = useState(null);
  const isCut = record.value.truncated || record.key.truncated;
  const base = url("/api/topics", [topic, "messages", record.partition, record.offset]);
  const fill = () => get(url(base, [], formats)).then(setWhole, setError);
  return html`<div class="detail">
    <${Problem} error=${error} />
    <dl class="facts">
      <div><dt>Time</dt><dd>${time(record.timestamp)}</dd></div>
      <div><dt>Partition</dt><dd>${record.partition}</dd></div>
      <div><dt>Offset</dt><dd>${count(record.offset)}</dd></div>
      <div><dt>Key</dt><dd>${size(record.key.size)} <${Badge}>${record.key.format}<//></dd></div>
      <div><dt>Value</dt><dd>${size(record.value.size)} <${Badge}>${record.value.format}<//></dd></div>
    </dl>
    ${whole.value.note && html`<p class="quiet">${whole.value.note}</p>`}
    <h3>Key</h3>
    <${Piece} piece=${whole.key} isWhole=${true} />
    <h3>Value</h3>
    <${Piece} piece=${whole.value} isWhole=${true} />
    ${whole.headers.length > 0 &&
    html`<h3>Headers</h3>
      <dl class="facts">${whole.headers.map((header, i) => html`<div key=${i}><dt>${header.name}</dt><dd class="mono">${header.format === "null" ? html`<em>null</em>` : header.text}</dd></div>`)}</dl>`}
    <p class="row">
      ${isCut && whole === record && html`<button type="button" onClick=${fill}>Show it whole</button>`}
      ${record.value.format !== "null" && html`<a class="button" download href=${url(base, ["raw"])}>Download value</a>`}
      <button type="button" onClick=${() => navigator.clipboard?.writeText(whole.value.text)}>Copy value</button>
    </p>
  </div>`;
}

function Rows({ topic, records, formats }) {
  const [isOpen, setOpen] = useState(new Set());
  const toggle = (id) => {
    const next = new Set(isOpen);
    if (!next.delete(id)) next.add(id);
    setOpen(next);
  };
  return html`<div class="table">
    <table class="messages" aria-label="Messages">
      <thead>
        <tr><th scope="col"><span class="sr">Details</span></th><th scope="col">Time</th><th scope="col" class="number">Partition</th><th scope="col" class="number">Offset</th><th scope="col">Key</th><th scope="col">Value</th></tr>
      </thead>
      <tbody>
        ${records.map((record) => {
          const id = `${record.partition}:${record.offset}`;
          const shown = isOpen.has(id);
          return html`<tr key=${id}>
              <td><button type="button" class="expand" aria-expanded=${shown ? "true" : "false"} aria-label=${`Details of partition ${record.partition}, offset ${record.offset}`} onClick=${() => toggle(id)}>${shown ? "−" : "+"}</button></td>
              <td class="when">${time(record.timestamp)}</td>
              <td class="number">${record.partition}</td>
              <td class="number">${record.offset}</td>
              <td class="cut"><${Piece} piece=${record.key} /></td>
              <td class="cut value"><${Piece} piece=${record.value} /></td>
            </tr>
            ${shown && html`<tr key=${`${id}+`} class="detail-row"><td colspan="6"><${Detail} topic=${topic} record=${record} formats=${formats} /></td></tr>`}`;
        })}
      </tbody>
    </table>
  </div>`;
}

function Produce({ topic, partitions, onClose, onDone }) {
  const [record, setRecord] = useState({ key: "", value: "", isNull: false, noKey: true, headers: "", partition: "" });
  const set = (changes) => setRecord({ ...record, ...changes });
  const [send, busy, error] = useAction(async () => {
    const headers = record.headers
      .split("\n")
      .filter((line) => line.trim())
      .map((line) => {
        const at = line.indexOf(":");
        return at < 0 ? { name: line.trim() } : { name: line.slice(0, at).trim(), text: line.slice(at + 1).trim() };
      });
    const done = await change("POST", url("/api/topics", [topic, "messages"]), {
      key: record.noKey ? null : { text: record.key },
      value: record.isNull ? null : { text: record.value },
      headers,
      ...(record.partition === "" ? {} : { partition: Number(record.partition) }),
    });
    onDone(done);
  });
  return html`<${Dialog} title=${`Produce to ${topic}`} onClose=${onClose} onSubmit=${send} submit="Produce" busy=${busy} error=${error}>
    <${Check} label="No key (null)" checked=${record.noKey} onChange=${(noKey) => set({ noKey })} />
    ${!record.noKey && html`<${Field} label="Key" value=${record.key} onInput=${(event) => set({ key: event.currentTarget.value })} />`}
    <${Check} label="Null value (a tombstone)" checked=${record.isNull} onChange=${(isNull) => set({ isNull })} />
    ${!record.isNull && html`<${Field} label="Value"><textarea rows="6" value=${record.value} onInput=${(event) => set({ value: event.currentTarget.value })}></textarea><//>`}
    <${Field} label="Headers" hint="One per line: name: value"><textarea rows="2" value=${record.headers} onInput=${(event) => set({ headers: event.currentTarget.value })}></textarea><//>
    <${Choice} label="Partition" value=${record.partition} options=${[["", "by the key"], ...Array.from({ length: partitions }, (_, i) => [String(i), String(i)])]} onChange=${(partition) => set({ partition })} />
  <//>`;
}

function Export({ topic, query }) {
  const { round, isLive, count: rows, ...rest } = query;
  const link = (format) => url("/api/topics", [topic, "export"], { ...rest, format });
  return html`<details class="export">
    <summary class="button">Export</summary>
    <div class="panel"><p>What matches, up to 100,000 records:</p><a download href=${link("jsonl")}>JSON lines</a><a download href=${link("parquet")}>Parquet</a></div>
  </details>`;
}

/** What is on the table: { records, next, progress, end, isBusy, error } for the query as it was asked. */
function useRecords(topic, asked) {
  const [state, setState] = useState({ records: [], isBusy: true });
  const stop = useRef(null);
  const base = (name) => url("/api/topics", [topic, name]);
  const { isLive, round, ...query } = asked;
  const isSearch = !isLive && (query.text || query.filter);
  useEffect(() => {
    stop.current?.();
    stop.current = null;
    setState({ records: [], isBusy: true });
    const fail = (error) => setState((old) => ({ ...old, error, isBusy: false }));
    if (isLive) {
      // Drawn a few times a second, however often they come.
      let come = [];
      let drawing = 0;
      const draw = () => {
        const found = come;
        come = [];
        drawing = 0;
        setState((old) => ({ ...old, records: [...found, ...old.records].slice(0, LIVE_ROWS) }));
      };
      const close = open(url(base("tail"), [], query), {
        records: (found) => {
          come = [...found.reverse(), ...come].slice(0, LIVE_ROWS);
          drawing ||= setTimeout(draw, LIVE_MS);
        },
        skipped: ({ records }) => setState((old) => ({ ...old, skipped: (old.skipped ?? 0) + records })),
        error: fail,
      });
      stop.current = () => {
        close();
        clearTimeout(drawing);
      };
    } else if (isSearch) {
      stop.current = open(url(base("search"), [], query), {
        records: (found) => setState((old) => ({ ...old, records: [...old.records, ...found] })),
        progress: (progress) => setState((old) => ({ ...old, progress })),
        end: (end) => setState((old) => ({ ...old, progress: end, end: end.reason, isBusy: false })),
        error: fail,
      });
    } else {
      let isGone = false;
      get(url(base("messages"), [], query)).then(
        (data) => isGone || setState({ records: data.records, next: data.next, withoutLeader: data.withoutLeader, isBusy: false }),
        (error) => isGone || fail(error),
      );
      stop.current = () => {
        isGone = true;
      };
    }
    return () => stop.current?.();
  }, [topic, JSON.stringify(asked)]);
  const more = () =>
    get(url(base("messages"), [], { ...query, next: state.next })).then(
      (data) => setState((old) => ({ ...old, records: [...old.records, ...data.records], next: data.next })),
      (error) => setState((old) => ({ ...old, error })),
    );
  const end = () => {
    stop.current?.();
    setState((old) => ({ ...old, isBusy: false, end: "stopped" }));
  };
  return { ...state, isSearch, more, end };
}

function Bar({ query, set, partitions, isLive, setLive }) {
  const [text, setText] = useState(query.text);
  const [filter, setFilter] = useState(query.filter);
  useEffect(() => {
    setText(query.text);
    setFilter(query.filter);
  }, [query.text, query.filter]);
  const submit = (event) => {
    event.preventDefault();
    set({ text, filter });
  };
  return html`<form class="tools" onSubmit=${submit}>
    <${Choice} label="Start" value=${query.from} disabled=${isLive} options=${[["newest", "newest"], ["oldest", "oldest"], ["offset", "from offset"], ["time", "from time"]]} onChange=${(from) => set({ from, time: from === "time" && !query.time ? String(Date.now() - 3600e3) : query.time })} />
    ${query.from === "offset" && html`<${Field} label="Offset" type="number" min="0" value=${query.offset} onChange=${(event) => set({ offset: event.currentTarget.value || "0" })} />`}
    ${query.from === "time" && html`<${Field} label="Time" type="datetime-local" step="1" value=${localTime(query.time)} onChange=${(event) => set({ time: String(new Date(event.currentTarget.value).getTime()) })} />`}
    <${Choice} label="Partition" value=${query.partition} options=${[["", "all"], ...Array.from({ length: partitions }, (_, i) => [String(i), String(i)])]} onChange=${(partition) => set({ partition })} />
    <${Choice} label="Rows" value=${query.count} options=${["20", "50", "100", "200", "500"]} onChange=${(rows) => set({ count: rows })} />
    <${Field} label="Text" placeholder="Part of key, value or header" value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
    <label class="field grow"><span>Filter (CEL)</span><input class="mono" placeholder=${'value.amount > 100 && key.startsWith("42")'} value=${filter} spellcheck=${false} autocapitalize="off" onInput=${(event) => setFilter(event.currentTarget.value)} /></label>
    <div class="row">
      <button type="submit" class="primary">${text || filter ? "Search" : "Load"}</button>
      <button type="button" aria-pressed=${isLive ? "true" : "false"} onClick=${() => setLive(!isLive)}>${isLive ? "Stop live" : "Live"}</button>
    </div>
    <details class="more">
      <summary>Formats</summary>
      <div class="tools">
        <${Choice} label="Key as" value=${query.key} options=${FORMATS} onChange=${(key) => set({ key })} />
        <${Choice} label="Value as" value=${query.value} options=${FORMATS} onChange=${(value) => set({ value })} />
        <${Choice} label="Transactions" value=${query.isolation} options=${[["read_uncommitted", "all records"], ["read_committed", "committed only"]]} onChange=${(isolation) => set({ isolation })} />
      </div>
    </details>
  </form>`;
}

function State({ found, isLive }) {
  const { progress, end, isBusy, isSearch, records, skipped } = found;
  if (isLive)
    return html`<p class="quiet" role="status"><span class="pulse" aria-hidden="true"></span>Live: ${plural(records.length, "record")} shown${skipped ? `, ${count(skipped)} too fast to show` : ""}. New ones come on top.</p>`;
  if (!isSearch) return html`<p class="quiet" role="status">${isBusy ? "Loading…" : plural(records.length, "record")}</p>`;
  return html`<div class="search-state" role="status">
    ${isBusy && html`<progress aria-label="Progress of the search" max="1" value=${progress?.share ?? 0}></progress>`}
    ${(progress || !found.error) && html`<span>${plural(progress?.matches ?? 0, "match", "matches")} in ${plural(progress?.records ?? 0, "record")}, ${size(progress?.bytes ?? 0)}, ${duration(progress?.ms ?? 0)}. ${end ? REASONS[end] : ""}</span>`}
    ${isBusy && html`<button type="button" onClick=${found.end}>Stop</button>`}
    ${progress?.failed > 0 && html`<p class="quiet">The filter could not be evaluated for ${plural(progress.failed, "record")}: ${progress.failure}</p>`}
  </div>`;
}

export function Messages({ topic, partitions }) {
  const [{ tab: _, ...query }, set] = useQuery({ ...DEFAULTS, tab: "messages" });
  const [isLive, setLive] = useState(false);
  const [round, setRound] = useState(0);
  const [isProducing, setProducing] = useState(false);
  const [done, setDone] = useState(null);
  const about = useAbout();
  const asked = useMemo(() => {
    const { from, offset, time: at, ...rest } = query;
    if (isLive) {
      const { count: rows, ...live } = rest;
      return { ...live, isLive, round };
    }
    return { ...rest, from, ...(from === "offset" ? { offset } : {}), ...(from === "time" ? { time: at } : {}), round };
  }, [JSON.stringify(query), isLive, round]);
  const found = useRecords(topic, asked);
  const formats = { key: query.key, value: query.value };
  return html`<${Bar} query=${query} partitions=${partitions} isLive=${isLive} setLive=${setLive} set=${(changes) => {
      set(changes);
      setRound((n) => n + 1);
    }} />
    <div class="row spread">
      <${State} found=${found} isLive=${isLive} />
      <div class="row">
        ${!isLive && html`<${Export} topic=${topic} query=${asked} />`}
        ${about.readWrite && html`<button type="button" onClick=${() => setProducing(true)}>Produce…</button>`}
      </div>
    </div>
    ${done && html`<p class="told" role="status">Written to partition ${done.partition} at offset ${count(done.offset)}.</p>`}
    <${Problem} error=${found.error} />
    ${found.withoutLeader?.length > 0 && html`<p class="notice">Partitions without a leader are not shown: ${found.withoutLeader.join(", ")}.</p>`}
    ${found.records.length
      ? html`<${Rows} topic=${topic} records=${found.records} formats=${formats} />`
      : found.isBusy
        ? !isLive && html`<${Loading} />`
        : !found.error && html`<p class="quiet empty">${found.isSearch ? "No record matches." : "There are no records here."}</p>`}
    ${found.next && html`<p><button type="button" onClick=${found.more}>More</button></p>`}
    ${isProducing && html`<${Produce} topic=${topic} partitions=${partitions} onClose=${() => setProducing(false)} onDone=${(where) => {
      setProducing(false);
      setDone(where);
      if (!isLive) setRound((n) => n + 1);
    }} />`}`;
}
