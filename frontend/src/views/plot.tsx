/** The timeline's skeleton: labels as text, canvases, and the surface that takes pointer and keys. */
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Row } from '../lanes/layout.ts';
import { scaleOf } from '../math/format.ts';
import { shift } from '../math/range.ts';
import { AXIS_TOP, SPANS_TOP } from '../timeline/head.ts';
import { attachPointer } from '../timeline/input.ts';
import { reachOf, readLane, valueAt, valueOver } from '../timeline/readout.ts';
import type { Timeline } from '../timeline/timeline.ts';
import { useApp, useSelect, useTab } from './hooks.ts';
import { Announcer } from './announcer.tsx';
import { FindingRows } from './findings.tsx';
import { GroupLabel, LaneLabel, StuckGroup } from './labels.tsx';
import { GoTo, ViewBar } from './viewbar.tsx';
import { Tooltip } from './tooltip.tsx';

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
  const headHeight = shape.head?.height ?? SPANS_TOP + 40;
  return (
    <section class={all ? 'timeline' : 'timeline peek'} ref={root} aria-label="Timeline" style={{ '--head': `${headHeight}px` }}>
      <div class="tl-head" style={{ height: `${headHeight}px` }}>
        <ViewBar />
        <GoTo top={AXIS_TOP - 3} />
        <div class="tl-head-labels" aria-hidden="true">
          <AxisName top={AXIS_TOP - 1} />
          {waits && shape.head && (
            <small style={{ top: `${shape.head.ranksTop + shape.head.rankHeight * (waits.rows.findIndex(({ rank }) => rank === waits.rank) + 0.5) - 9}px` }}>worker {waits.rank} ▸</small>
          )}
          {shape.head && shape.head.phases.length + shape.head.epochs.length > 0 && <small style={{ top: `${shape.head.phasesTop - 1}px` }}>phases</small>}
          {(shape.head?.windows.length ?? 0) > 0 && <small style={{ top: `${(shape.head?.windowsTop ?? 140) - 1}px` }}>profiler windows</small>}
        </div>
        <canvas ref={head} aria-hidden="true" />
        {shape.head && <FindingRows head={shape.head} />}
      </div>
      <div class="tl-scroll" ref={scroller}>
        <div class="tl-content" style={{ height: `${Math.max(shape.layout.height, 40)}px` }}>
          <StuckGroup />
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

function AxisName({ top }: { top: number }) {
  const { app } = useTab();
  const axis = useSelect(app.state, (state) => state.axis);
  return <small style={{ top: `${top}px` }}>{axis === 'steps' ? 'step' : axis === 'time' ? 'h:min:s' : 'clock'}</small>;
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
    setText(label.value, value.heads.length === 0 ? (at === null ? '' : 'no data') : `${value.heads.map(number).join(' · ')}${unit && ` ${unit}`}`);
    setText(label.scale, `0–${number(scale.top)}${unit && ` ${unit}`}`);
    if (label.scale.title !== label.scale.textContent) label.scale.title = label.scale.textContent ?? '';
  }
}

function setText(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}
