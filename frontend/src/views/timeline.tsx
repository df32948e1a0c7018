/** The timeline's skeleton: labels as text, canvases, and the surface that takes pointer and keys. */
import { useEffect, useRef } from 'preact/hooks';
import type { GroupRow, LaneRow } from '../lanes/layout.ts';
import { clean } from '../math/text.ts';
import { withUnit } from '../math/format.ts';
import { AXIS_TOP, SPANS_TOP } from '../timeline/head.ts';
import { seriesColour } from '../words/accounts.ts';
import { attachPointer } from '../timeline/input.ts';
import { reachOf, readLane, valueAt, valueOver } from '../timeline/readout.ts';
import type { Timeline } from '../timeline/timeline.ts';
import { useSelect, useTab } from './hooks.ts';
import { Announcer } from './announcer.tsx';
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
    <section class="timeline" ref={root} aria-label="Timeline">
      <div class="tl-head" style={{ height: `${headHeight}px` }}>
        <div class="tl-head-labels" aria-hidden="true">
          <span style={{ top: '10px' }}>overview</span>
          <small style={{ top: '27px' }}>drag to zoom</small>
          <AxisName top={AXIS_TOP - 1} />
          <span style={{ top: `${SPANS_TOP + 1}px` }}>bottlenecks</span>
          <small style={{ top: `${(shape.head?.phasesTop ?? 120) - 1}px` }}>phases</small>
          {(shape.head?.windows.length ?? 0) > 0 && <small style={{ top: `${(shape.head?.windowsTop ?? 140) - 1}px` }}>profiler windows</small>}
        </div>
        <canvas ref={head} aria-hidden="true" />
      </div>
      <div class="tl-scroll" ref={scroller}>
        <div class="tl-content" style={{ height: `${Math.max(shape.layout.height, 40)}px` }}>
          <div class="tl-labels">
            {shape.layout.rows.map((row) => (row.type === 'group' ? <GroupLabel key={row.key} row={row} /> : <LaneLabel key={`${row.key}${row.pinned}`} row={row} />))}
          </div>
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
      <Tooltip />
      <Announcer />
    </section>
  );
}

function AxisName({ top }: { top: number }) {
  const { app } = useTab();
  const axis = useSelect(app.state, (state) => state.axis);
  return <small style={{ top: `${top}px` }}>{axis === 'steps' ? 'step' : axis === 'time' ? 'h:min:s' : 'time of day'}</small>;
}

function GroupLabel({ row }: { row: GroupRow }) {
  const { app } = useTab();
  return (
    <button
      type="button"
      class="tl-group"
      style={{ top: `${row.top}px`, height: `${row.height}px` }}
      aria-expanded={!row.collapsed}
      onClick={() => app.toggle('collapsed', row.key)}
    >
      <span aria-hidden="true">{row.collapsed ? '▸' : '▾'}</span>
      <bdi>{row.title}</bdi>
      {row.collapsed && <small>{row.lanes} lanes</small>}
    </button>
  );
}

function Tool({ sign, name, onClick }: { sign: string; name: string; onClick: () => void }) {
  return (
    <button type="button" aria-label={name} title={name} onClick={onClick}>
      {sign}
    </button>
  );
}

function LaneLabel({ row }: { row: LaneRow }) {
  const { app, timeline } = useTab();
  const { lane } = row;
  const name = clean(lane.title, 60);
  const scale = useRef<HTMLSpanElement>(null);
  const value = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    const label = { value: value.current as HTMLElement, scale: scale.current as HTMLElement };
    timeline.labels.set(row.key, label);
    timeline.invalidate();
    return () => {
      if (timeline.labels.get(row.key) === label) timeline.labels.delete(row.key);
    };
  }, [row.key]);
  return (
    <div class="tl-label" style={{ top: `${row.top}px`, height: `${row.height}px` }} title={[row.origin, lane.title, lane.note].filter(Boolean).map((part) => clean(part, 400)).join('\n')}>
      <span class="tl-title">
        <bdi>{clean(lane.title, 60)}</bdi>
      </span>
      <span class="tl-scale" ref={scale} />
      <span class="tl-value" ref={value} data-value={row.key} />
      {row.origin && <bdi class="tl-origin">{clean(row.origin, 60)}</bdi>}
      {lane.kind === 'stack' && (
        <ul class="tl-legend">
          {[...lane.series].reverse().map(({ name, title }) => (
            <li key={name}>
              <i class="swatch" style={{ background: `var(--${seriesColour(name)})` }} />
              <bdi>{clean(title || name, 40)}</bdi>
            </li>
          ))}
        </ul>
      )}
      <span class="tl-tools">
        {row.pinned && <Tool sign="↑" name={`Move ${name} up`} onClick={() => app.movePin(row.key, -1)} />}
        {row.pinned && <Tool sign="↓" name={`Move ${name} down`} onClick={() => app.movePin(row.key, 1)} />}
        <Tool sign={row.pinned ? '⊖' : '⊕'} name={`${row.pinned ? 'Unpin' : 'Pin'} ${name}`} onClick={() => app.togglePin(row.key)} />
        {!row.pinned && <Tool sign="✕" name={`Hide ${name}`} onClick={() => app.toggle('hidden', row.key)} />}
      </span>
    </div>
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
    const reach = reachOf(axis, level);
    const value = readLane(lane, (series) =>
      at === null
        ? valueOver(source.tiles, axis, level, lane, series, view)
        : valueAt(source.tiles, axis, level, lane.id, series, at, reach),
    );
    setText(label.value, value.headline === null ? (at === null ? '' : 'no data') : withUnit(value.headline, lane.unit));
    setText(label.scale, `0–${withUnit(scale.top, lane.unit)}`);
    if (label.scale.title !== label.scale.textContent) label.scale.title = label.scale.textContent ?? '';
  }
}

function setText(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}
