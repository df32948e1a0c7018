/** The labels beside the lanes: names, scales, values; they fold, pin, hide and move what they name. */
import { useEffect, useRef } from 'preact/hooks';
import { neighbours, type GroupRow, type LaneRow } from '../lanes/layout.ts';
import { plural } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { EXTRA } from '../timeline/body.ts';
import type { Timeline } from '../timeline/timeline.ts';
import { laneColour, seriesColour } from '../words/accounts.ts';
import { useTab } from './hooks.ts';

const DRAG_PIXELS = 6;

/** Dragging a label with the mouse up or down moves its row among its neighbours. */
function startDrag(timeline: Timeline, key: string, event: PointerEvent): void {
  if (event.button !== 0 || event.pointerType === 'touch' || (event.target as HTMLElement).closest('.tl-tools')) return;
  const label = event.currentTarget as HTMLElement;
  const from = event.clientY;
  let moved = 0;
  const move = (now: PointerEvent): void => {
    moved = now.clientY - from;
    if (Math.abs(moved) < DRAG_PIXELS) return;
    label.classList.add('dragged');
    label.style.transform = `translateY(${moved}px)`;
  };
  const end = (now: PointerEvent): void => {
    removeEventListener('pointermove', move);
    removeEventListener('pointerup', end);
    removeEventListener('pointercancel', end);
    label.classList.remove('dragged');
    label.style.transform = '';
    if (Math.abs(moved) < DRAG_PIXELS || now.type === 'pointercancel') return;
    // The click that follows would fold a group.
    addEventListener('click', (click) => click.stopPropagation(), { capture: true, once: true });
    setTimeout(() => dropAt(timeline, key, moved));
  };
  addEventListener('pointermove', move);
  addEventListener('pointerup', end);
  addEventListener('pointercancel', end);
}

/** Moves a row to where its middle was dragged to. */
function dropAt(timeline: Timeline, key: string, by: number): void {
  const { app } = timeline;
  const { layout } = timeline.shape.get();
  const { pinned } = app.state.get();
  const list = pinned.includes(key) ? pinned : neighbours(layout, key);
  const rows = list.map((one) => layout.rows.find((row) => row.key === one)).filter((row) => row !== undefined);
  const own = rows.find((row) => row.key === key);
  if (!own) return;
  const middle = own.top + own.height / 2 + by;
  const to = rows.filter((row) => row.key !== key && row.top + row.height / 2 < middle).length;
  if (pinned.includes(key)) app.movePin(key, to - pinned.indexOf(key));
  else app.moveRow(key, list, to);
}

export function GroupLabel({ row }: { row: GroupRow }) {
  const { app, timeline } = useTab();
  return (
    <button
      type="button"
      class="tl-group"
      style={{ top: `${row.top}px`, height: `${row.height}px` }}
      aria-expanded={!row.collapsed}
      title="Click to fold, drag to move"
      onPointerDown={(event) => startDrag(timeline, row.key, event)}
      onClick={() => app.toggle('collapsed', row.key)}
    >
      <span aria-hidden="true">{row.collapsed ? '▸' : '▾'}</span>
      <bdi>{row.title}</bdi>
      {row.collapsed && <small>{plural(row.lanes, 'lane')}</small>}
    </button>
  );
}

function Tool({ sign, name, onClick }: { sign: string; name: string; onClick: () => void }) {
  return (
    // For the mouse: by keyboard all of it is in the list of lanes, without four stops a lane.
    <button type="button" tabIndex={-1} aria-label={name} title={name} onClick={onClick}>
      {sign}
    </button>
  );
}

/** What a lane's further series are: colours with names. */
function Legend({ row }: { row: LaneRow }) {
  const { lane } = row;
  if (lane.kind !== 'stack' && lane.series.length < 2) return null;
  const colour = (name: string, i: number): string | undefined => (lane.kind === 'stack' ? seriesColour(name) : i === 0 ? laneColour(lane.id) : EXTRA[(i - 1) % EXTRA.length]);
  const entries = lane.series.map(({ name, title }, i) => ({ name, title, colour: colour(name, i) }));
  return (
    <ul class={lane.kind === 'stack' ? 'tl-legend' : 'tl-legend inline'}>
      {(lane.kind === 'stack' ? entries.reverse() : entries).map((entry) => (
        <li key={entry.name}>
          <i class="swatch" style={{ background: `var(--${entry.colour})` }} />
          <bdi>{clean(entry.title || entry.name, 40)}</bdi>
        </li>
      ))}
    </ul>
  );
}

export function LaneLabel({ row }: { row: LaneRow }) {
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
    <div
      class="tl-label"
      style={{ top: `${row.top}px`, height: `${row.height}px` }}
      title={[row.origin, lane.title, lane.note, 'Drag to move'].filter(Boolean).map((part) => clean(part, 400)).join('\n')}
      onPointerDown={(event) => startDrag(timeline, row.key, event)}
    >
      <span class="tl-title">
        <bdi>{name}</bdi>
      </span>
      <span class="tl-scale" ref={scale} />
      <span class="tl-value" ref={value} data-value={row.key} />
      {row.origin && <bdi class="tl-origin">{clean(row.origin, 60)}</bdi>}
      <Legend row={row} />
      <span class="tl-tools">
        <Tool sign="↑" name={`Move ${name} up`} onClick={() => timeline.moveRow(row.key, -1)} />
        <Tool sign="↓" name={`Move ${name} down`} onClick={() => timeline.moveRow(row.key, 1)} />
        <Tool sign={row.pinned ? '⊖' : '⊕'} name={`${row.pinned ? 'Unpin' : 'Pin'} ${name}`} onClick={() => app.togglePin(row.key)} />
        {!row.pinned && <Tool sign="✕" name={`Hide ${name}`} onClick={() => app.toggle('hidden', row.key)} />}
      </span>
    </div>
  );
}
