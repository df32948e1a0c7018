/** What is under the pointer, in words and numbers. */
import { colourOf } from '../lanes/colours.ts';
import { phaseTitle } from '../lanes/spans.ts';
import { between, duration, nanoseconds, percent, plural, seconds, withUnit } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { phaseAt, waitAt, waitColour } from '../timeline/head.ts';
import { windowUnder } from '../timeline/input.ts';
import { isEstimate, isLoss } from '../lanes/time.ts';
import { placeText } from '../timeline/overlay.ts';
import { reachOf, readLane, valueAt } from '../timeline/readout.ts';
import type { Timeline } from '../timeline/timeline.ts';
import { toValue } from '../math/range.ts';
import { titleOf } from '../words/causes.ts';
import { laneTitle, stepsText } from '../words/labels.ts';
import { useSelect, useTab } from './hooks.ts';

interface Line {
  colour?: string;
  title: string;
  value: string;
}

interface Content {
  title: string;
  lines: Line[];
}

const WINDOWS_ESTIMATE = 'estimated from profiler windows';

/** What is under the mouse, beside it; on the side that has room. */
export function Tooltip() {
  const { app, timeline } = useTab();
  const cursor = useSelect(app.cursor, (value) => value);
  useSelect(timeline.drawn, (value) => (app.cursor.get().at === null ? 0 : value.count));
  if (cursor.at === null || cursor.byKeyboard || timeline.drag) return null;
  const content = contentAt(timeline);
  if (!content) return null;
  const right = cursor.x > innerWidth - 280;
  const below = cursor.y < innerHeight - 190;
  const style = {
    left: right ? 'auto' : `${cursor.x + 16}px`,
    right: right ? `${innerWidth - cursor.x + 16}px` : 'auto',
    top: below ? `${cursor.y + 18}px` : 'auto',
    bottom: below ? 'auto' : `${innerHeight - cursor.y + 12}px`,
  };
  return (
    <div class="tooltip" style={style} aria-hidden="true">
      <b>
        <bdi>{content.title}</bdi>
      </b>
      {content.lines.map((line, i) => (
        <div key={i} class="tooltip-line">
          <span>
            {line.colour && <i class="swatch" style={{ background: `var(--${line.colour})` }} />}
            <bdi>{line.title}</bdi>
          </span>
          <b>{line.value}</b>
        </div>
      ))}
    </div>
  );
}

/** What stands under the cursor, in a lane or in the head; null where there is nothing. */
function contentAt(timeline: Timeline): Content | null {
  const { frame, head } = timeline;
  const { laneKey: key } = timeline.app.cursor.get();
  if (!frame || !head || key === null) return null;
  const place = /^head (-?\d+) (-?\d+)$/.exec(key);
  if (place) return headContent(timeline, Number(place[1]), Number(place[2]));
  return laneContent(timeline, key);
}

/** The same for a place in the head, in pixels: a worker's wait, a part of the time, a profiler window or a phase. */
function headContent(timeline: Timeline, x: number, y: number): Content | null {
  const { frame, head } = timeline;
  if (!frame || !head) return null;
  const wait = waitAt(frame, head, x, y);
  if (wait && frame.waits) {
    const { rank, confidence } = frame.waits;
    const estimate: Line[] = confidence === 'estimated' ? [{ title: WINDOWS_ESTIMATE, value: '' }] : [];
    const title = wait.rank === rank ? 'holds the others back' : `waiting for worker ${rank}`;
    const line = { colour: waitColour(frame.waits, wait.rank), title, value: percent(100 * wait.share) };
    return { title: `worker ${wait.rank}`, lines: [...estimate, line] };
  }
  const time = timeline.timeAt(x, y);
  if (time) return timeContent(timeline, time, x);
  if (y < head.phasesTop) return null;
  const window = windowUnder(timeline, x, y);
  if (window) {
    const lines: Line[] = [{ title: stepsText({ start_step: window.first_step, end_step: window.stop_step }), value: '' }];
    if (window.cost_s !== null) lines.push({ title: 'cost', value: seconds(window.cost_s) });
    lines.push({ title: 'click for its traced steps and kernels', value: '' });
    return { title: 'Profiler window', lines };
  }
  if (head.windows.length > 0 && y >= head.windowsTop - 1) return null;
  const phase = phaseAt(frame, head, x);
  if (!phase) return null;
  const lines: Line[] = [{ title: 'took', value: nanoseconds(phase.end_ns - phase.start_ns) }];
  if ((phase.count ?? 1) > 1) lines.push({ title: 'calls', value: String(phase.count) });
  return { title: phaseTitle(phase), lines };
}

/** The parts of the time at a place of its lane, and what is lost in the hole that is pointed at. */
function timeContent(timeline: Timeline, { shown, part, hole }: NonNullable<ReturnType<Timeline['timeAt']>>, x: number): Content | null {
  const { frame } = timeline;
  const { columns, row } = shown;
  const i = columns.x0.findIndex((left, at) => at < columns.n && x >= left && x < (columns.x1[at] as number));
  if (!frame || i < 0) return null;
  const at = toValue(frame.view, frame.width, x);
  const lines: Line[] = row.lane.series.flatMap(({ name, title }, s) => {
    const share = 100 * ((columns.base[s + 1]?.[i] as number) - (columns.base[s]?.[i] as number));
    return share < 0.5 ? [] : [{ colour: name, title: name === part ? `▸ ${clean(title, 40)}` : clean(title, 40), value: percent(share) }];
  });
  if (hole) lines.push({ title: 'here in a row', value: `${isEstimate(part) ? '≈ ' : ''}−${duration(hole.seconds)}` });
  const item = isLoss(part) ? timeline.findingOf(part, at) : null;
  if (item) lines.push({ title: `${titleOf(item)}: click for the fix`, value: '' });
  return { title: `${clean(row.lane.title, 40)} · ${placeText(frame, at)}`, lines: lines.reverse() };
}

/** A lane's values at the cursor; shared with what a screen reader hears. */
export function laneContent(timeline: Timeline, key: string): Content | null {
  const { frame } = timeline;
  const { at } = timeline.app.cursor.get();
  if (!frame || at === null) return null;
  for (const row of timeline.shape.get().layout.rows) {
    const source = row.key === key ? frame.sources.find(({ id }) => row.type === 'lane' && id === row.source) : undefined;
    if (row.type !== 'lane' || !source) continue;
    const { lane } = row;
    const reach = reachOf(frame, source.recording, timeline.scales.get(key)?.join);
    const value = readLane(lane, (series) => valueAt(source.tiles, frame.axis, frame.level, lane.id, series, at - source.shift, reach));
    const lines: Line[] = [];
    if (value.heads.length === 0) lines.push({ title: 'no data here', value: '' });
    value.series.forEach(({ name, title, value: measured }) => {
      if (!measured) return;
      if (lane.kind === 'stack' && measured.max === 0) return;
      lines.push({ colour: colourOf(row.whole, name), title: row.whole.series.length > 1 ? clean(title, 60) : 'avg', value: withUnit(measured.mean, lane.unit) });
      if (measured.max > measured.min && (lane.kind !== 'stack' || measured.max > measured.mean * 1.5))
        lines.push({ title: 'min–max', value: between(withUnit(measured.min, lane.unit), withUnit(measured.max, lane.unit), ' – ') });
    });
    if (lane.kind === 'stack' && value.heads.length > 0) lines.push({ title: 'step', value: withUnit(value.heads[0], lane.unit) });
    const others = frame.sources
      .filter(({ id, rowOwner }) => rowOwner === row.source && id !== rowOwner)
      .flatMap((other) => readLane(lane, (series) => valueAt(other.tiles, frame.axis, frame.level, lane.id, series, at - other.shift, reach)).heads.slice(0, 1));
    if (others.length > 0) lines.push({ title: plural(others.length, 'other worker'), value: between(withUnit(Math.min(...others), lane.unit), withUnit(Math.max(...others), lane.unit), ' – ') });
    return { title: [frame.sources.length > 1 && source.label, laneTitle(lane), placeText(frame, at)].filter(Boolean).join(' · '), lines };
  }
  return null;
}
