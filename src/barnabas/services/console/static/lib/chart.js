// A chart over time, with a text alternative for screen readers.
import uPlot from "../vendor/uplot.js";
import { html, useEffect, useRef } from "./dom.js";

const clock = (s) => (s === null || s === undefined ? "" : new Date(s * 1000).toTimeString().slice(0, 8));
const shown = (value, format) => (value === null || value === undefined ? "–" : format(value));
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Interrupt lines where nobody looked: where points are missing, beside the usual distance of two points. */
function withGaps([at, ...series]) {
  const steps = at.slice(1).map((s, i) => s - at[i]);
  const usual = [...steps].sort((a, b) => a - b)[steps.length >> 1] ?? 0;
  const gaps = steps.flatMap((s, i) => (s > Math.max(20, 4 * usual) ? [i + 1] : []));
  if (!gaps.length) return [at, ...series];
  const inserted = (values, empty) => values.flatMap((value, i) => (gaps.includes(i) ? [empty(i), value] : [value]));
  return [inserted(at, (i) => (at[i - 1] + at[i]) / 2), ...series.map((values) => inserted(values, () => null))];
}

/** At least a minute: else the first points would have an axis of days, or of milliseconds. */
function show(plot, data) {
  if (!plot) return;
  const [at] = data;
  plot.setData(withGaps(data));
  if (at.length) plot.setScale("x", { min: Math.min(at[0], at[at.length - 1] - 60), max: at[at.length - 1] });
}

/** at: seconds; series: [{ label, values, color?: 1..4 }]; format: of a value; says: a sentence. */
export function Chart({ at, series, format, says, height = 180 }) {
  const place = useRef(null);
  const plot = useRef(null);
  const latest = useRef(null);
  latest.current = [at, ...series.map((each) => each.values)];
  const shape = JSON.stringify(series.map((each) => [each.label, each.color]));
  useEffect(() => {
    const build = () => {
      plot.current?.destroy();
      // The page may have been closed before its effects run.
      if (!place.current) return;
      const grid = { stroke: color("--line"), width: 1 };
      const axis = { stroke: color("--quiet"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
      plot.current = new uPlot(
        {
          width: Math.max(place.current.clientWidth, 200),
          height,
          cursor: { y: false },
          padding: [8, 28, 0, 0],
          legend: { live: true, show: series.length > 1 },
          scales: {
            y: { range: (_, low, high) => [-0.03 * Math.max(high ?? 0, 1e-3), (high ?? 0) > 0 ? high * 1.1 : 1] },
          },
          axes: [
            { ...axis, values: (_, ticks) => ticks.map(clock) },
            { ...axis, size: 66, values: (_, ticks) => ticks.map((value) => format(value)) },
          ],
          series: [
            { value: (u, s, _, index) => clock(index === null ? u.data[0].at(-1) : s) },
            ...series.map((each, i) => ({
              label: each.label,
              stroke: color(`--chart-${each.color ?? (i % 4) + 1}`),
              width: 2,
              dash: [[], [6, 4], [2, 3], [10, 3, 2, 3]][i % 4],
              points: { show: (u) => u.data[0].length < 3 },
              value: (u, value, number, index) => shown(index === null ? u.data[number].at(-1) : value, format),
            })),
          ],
        },
        latest.current,
        place.current,
      );
      show(plot.current, latest.current);
    };
    build();
    const resize = new ResizeObserver(() => place.current && plot.current?.setSize({ width: Math.max(place.current.clientWidth, 200), height }));
    if (place.current) resize.observe(place.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("console-theme", build);
    scheme.addEventListener("change", build);
    return () => {
      resize.disconnect();
      removeEventListener("console-theme", build);
      scheme.removeEventListener("change", build);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, height]);
  useEffect(() => {
    show(plot.current, latest.current);
  }, [at, series]);
  return html`<figure class="chart"><div ref=${place} aria-hidden="true"></div><figcaption class="sr">${says}</figcaption></figure>`;
}
