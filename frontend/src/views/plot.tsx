/** The timeline's skeleton: labels as text, canvases, and the surface that takes pointer and keys. */
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Row } from '../lanes/layout.ts';
import { percent, scaleOf } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { shift } from '../math/range.ts';
import { LANE_TOP, meanWait, timeHeight, type Head } from '../timeline/head.ts';
import { attachPointer } from '../timeline/input.ts';
import { reachOf, readLane, valueAt, valueOver } from '../timeline/readout.ts';
import type { Timeline } from '../timeline/timeline.ts';
import { useApp, useSelect, useTab } from './hooks.ts';
import { Announcer } from './announcer.tsx';
import { GroupLabel, LaneLabel } from './labels.tsx';
import { ViewBar } from './viewbar.tsx';
import { Tooltip } from './tooltip.tsx';

/** The timeline: a head with time, GPUs and phases that stays, lanes that scroll below it, and a cursor over both. */
export function TimelineView() {
  const { timeline } = useTab();
  const root = useRef<HTMLElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const surface = useRef<HTMLDivElement>(null);
  const head = useRef<HTMLCanvasElement>(null);
  const body = useRef<HTMLCanvasElement>(null);
  const overlay = useRef<HTMLCanvasElement>(null);
  const shape = useSelect(timeline.shape, (value) => value);
  const waits = useApp((state) => state.job?.waits);
  // In a narrow frame the first lanes stand above the fix; all of them are a click away.
  const [all, setAll] = useState(false);
  useEffect(() => {
    const unmount = timeline.mount({
      root: root.current as HTMLElement,
      scroller: scroller.current as HTMLElement,
      surface: surface.current as HTMLElement,
      head: head.current as HTMLCanvasElement,
      body: body.current as HTMLCanvasElement,
      overlay: overlay.current as HTMLCanvasElement,
    });
    const detach = attachPointer(timeline, surface.current as HTMLElement, head.current as HTMLElement);
    const values = (): void => writeValues(timeline, root.current as HTMLElement);
    const stops = [timeline.drawn.subscribe(values), timeline.app.cursor.subscribe(values)];
    return () => {
      for (const stop of stops) stop();
      detach();
      unmount();
    };
  }, []);
  const { head: shown } = shape;
  const headHeight = shown?.height ?? LANE_TOP + timeHeight(innerWidth, innerHeight) + 20;
  return (
    <section class={all ? 'timeline' : 'timeline peek'} ref={root} aria-label="Timeline" style={{ '--head': `${headHeight}px` }}>
      <div class="tl-head" style={{ height: `${headHeight}px` }}>
        <ViewBar />
        <div class="tl-head-labels">
          {shown?.times.map((row, i) => (
            <TimeLabel key={row.source.id} row={row} many={shown.times.length > 1} first={i === 0} />
          ))}
          {shown?.mfu && <small style={{ top: `${shown.mfuTop}px` }}>of its peak (MFU)</small>}
          {shown && waits && <RankLabels head={shown} late={waits.rank} />}
          {shown && shown.gpus.length > 0 && (
            <small style={{ top: `${shown.gpusTop - 3}px` }}>
              {clean(shown.gpus[0]?.group ?? '', 12)}
              {shown.gpus.length > 1 && ` ▸ and ${shown.gpus.length - 1} others`}
            </small>
          )}
          {shown && shown.phases.length + shown.epochs.length > 0 && <small style={{ top: `${shown.phasesTop - 1}px` }}>phases</small>}
          {shown && shown.windows.length > 0 && <small style={{ top: `${shown.windowsTop - 1}px` }}>profiler windows</small>}
        </div>
        <canvas ref={head} aria-hidden="true" />
      </div>
      <div class="tl-scroll" ref={scroller}>
        <div class="tl-content" style={{ height: `${Math.max(shape.layout.height, 40)}px` }}>
          <Labels rows={shape.layout.rows} />
          <div
            class="tl-surface"
            ref={surface}
            role="application"
            tabIndex={0}
            aria-label="Lanes over the axis. Left and right arrows move a cursor, up and down change the lane, Enter opens the span or profiler window there; W A S D zoom and pan; question mark lists all keys."
            style={{ height: `${Math.max(40, Math.min(shape.height, Math.max(shape.layout.height, 40)))}px` }}
          >
            <canvas ref={body} aria-hidden="true" />
          </div>
        </div>
      </div>
      <canvas class="tl-overlay" ref={overlay} aria-hidden="true" />
      {!all && (
        <button type="button" class="linklike tl-more" onClick={() => setAll(true)}>
          ▾ all lanes
        </button>
      )}
      <Tooltip />
      <Announcer />
    </section>
  );
}

/** The names beside the lanes and groups; Tab leads to one group, and arrow keys from there. */
function Labels({ rows }: { rows: Row[] }) {
  const [focused, setFocused] = useState<string | null>(null);
  const groups = rows.filter(({ type }) => type === 'group');
  const stop = groups.find(({ key }) => key === focused) ?? groups[0];
  return (
    <div class="tl-labels">
      {rows.map((row) =>
        row.type === 'group' ? <GroupLabel key={row.key} row={row} stop={row === stop} onFocus={() => setFocused(row.key)} /> : <LaneLabel key={`${row.key}${row.pinned}`} row={row} />,
      )}
    </div>
  );
}

/** What stands beside a lane of time: whose it is, and how it is read. */
function TimeLabel({ row, many, first }: { row: Head['times'][number]; many: boolean; first: boolean }) {
  const { timeline } = useTab();
  const { recording, id } = row.source;
  const mfu = recording.report.gpus.find(({ mfu_pct }) => typeof mfu_pct === 'number')?.mfu_pct;
  const chosen = useApp((state) => state.gpus[id] ?? row.lane.id);
  const lanes = recording.lanes.filter(({ kind }) => kind === 'time');
  return (
    <div class="tl-time" style={{ top: `${row.top}px`, height: `${row.height}px` }}>
      {lanes.length > 1 && first && !many ? (
        <select aria-label="Whose time" value={chosen} onChange={(event) => timeline.chooseGpu(id, event.currentTarget.value)}>
          {lanes.map((lane) => (
            <option key={lane.id} value={lane.id}>
              {clean(lane.title, 40)}
            </option>
          ))}
        </select>
      ) : (
        <b>{clean(row.lane.title, 40)}</b>
      )}
      {many && <bdi class="dim clip">{clean(row.source.label, 60)}</bdi>}
      {row.height >= 120 && <p class="dim">{row.lane.id.endsWith(':thread') ? 'in steps' : 'busy'}, and what took the rest</p>}
      {row.height >= 150 && (
        <p class="dim tl-howto">
          <span aria-hidden="true">■ </span>
          {clean(row.lane.note, 200)}
        </p>
      )}
      {first && typeof mfu === 'number' && row.height >= 150 && <p class="dim">{percent(mfu)} of its peak (MFU)</p>}
    </div>
  );
}

/** "rank 2 · 65 % working · 35 % waiting for 2", a line each where there is room for it. */
function RankLabels({ head, late }: { head: Head; late: number }) {
  return (
    <>
      {head.ranks.map((row, i) => {
        const waited = meanWait(row);
        if (head.rankHeight < 11 && i > 0) return null;
        return (
          <small key={row.rank} class="tl-rank" style={{ top: `${head.ranksTop + i * head.rankHeight - 2}px` }}>
            {row.rank === late ? `rank ${late} holds the others back` : row.rank}
            {waited !== null && row.rank !== late && (
              <>
                <span class="wide"> · {percent(100 * (1 - waited))} working</span> · {percent(100 * waited)} waiting for {late}
              </>
            )}
          </small>
        );
      })}
    </>
  );
}

/** Writes scales and values into the labels: under the cursor, or the mean of what is in view. */
function writeValues(timeline: Timeline, root: HTMLElement): void {
  const { frame } = timeline;
  if (!frame) return;
  const { at } = timeline.app.cursor.get();
  root.classList.toggle('with-cursor', at !== null);
  for (const row of timeline.shape.get().layout.rows) {
    if (row.type !== 'lane') continue;
    const scale = timeline.scales.get(row.key);
    const source = frame.sources.find(({ id }) => id === row.source);
    const label = timeline.labels.get(row.key);
    if (!scale || !source || !label) continue; // out of sight
    const { axis, level, view } = frame;
    const { lane } = row;
    const reach = reachOf(frame, source.recording, scale.join);
    const value = readLane(lane, (series) =>
      at === null
        ? valueOver(source.tiles, axis, level, lane, series, shift(view, -source.shift))
        : valueAt(source.tiles, axis, level, lane.id, series, at - source.shift, reach),
    );
    const { unit, number } = scaleOf(scale.top, lane.unit);
    let text = `${value.heads.map(number).join(' · ')}${unit && ` ${unit}`}`;
    if (value.heads.length === 0) text = at === null ? '' : 'no data';
    setText(label.value, text);
    setText(label.scale, `0–${number(scale.top)}${unit && ` ${unit}`}`);
    if (label.scale.title !== label.scale.textContent) label.scale.title = label.scale.textContent ?? '';
  }
}

function setText(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}
