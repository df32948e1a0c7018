/** The labels beside the lanes: names, scales, values; they fold, pin, hide and move what they name. */
import { useEffect, useRef } from 'preact/hooks';
import { colourOf } from '../lanes/colours.ts';
import type { GroupRow, LaneRow } from '../lanes/layout.ts';
import { plural } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { useTab } from './hooks.ts';

/**
 * Groups are one stop of the Tab key; inside, arrow keys go from group to group, open and fold them.
 * With 64 GPUs nobody presses Tab as often.
 */
function rove(event: KeyboardEvent, row: GroupRow, toggle: () => void): void {
  const all = [...document.querySelectorAll<HTMLElement>('.tl-labels .tl-group')];
  const at = all.indexOf(event.currentTarget as HTMLElement);
  const places: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 };
  const to = places[event.key];
  if (to !== undefined) all[Math.max(0, Math.min(to, all.length - 1))]?.focus();
  else if ((event.key === 'ArrowRight' && row.collapsed) || (event.key === 'ArrowLeft' && !row.collapsed)) toggle();
  else return;
  event.preventDefault();
  event.stopPropagation();
}

interface GroupProps {
  row: GroupRow;
  /** The one that the Tab key reaches. */
  stop: boolean;
  onFocus: () => void;
}

/** The name of a group of lanes; a click folds it. `stop`: the one group that Tab leads to. */
export function GroupLabel({ row, stop, onFocus }: GroupProps) {
  const { app } = useTab();
  const toggle = (): void => app.toggle('collapsed', row.key);
  return (
    <button
      type="button"
      class="tl-group"
      style={{ top: `${row.top}px`, height: `${row.height}px` }}
      aria-expanded={!row.collapsed}
      tabIndex={stop ? 0 : -1}
      title="Click to fold; arrow keys go from group to group"
      onFocus={onFocus}
      onKeyDown={(event) => rove(event, row, toggle)}
      onClick={toggle}
    >
      <GroupTitle row={row} />
    </button>
  );
}

/** A group's name, and how many lanes it hides while it is folded. */
function GroupTitle({ row }: { row: GroupRow }) {
  return (
    <>
      <span aria-hidden="true">{row.collapsed ? '▸' : '▾'}</span>
      <bdi>{row.title}</bdi>
      {row.collapsed && <small>{plural(row.lanes, 'lane')}</small>}
    </>
  );
}

/** A small button beside a lane's name. */
function Tool({ sign, name, onClick }: { sign: string; name: string; onClick: () => void }) {
  return (
    // For the mouse: by keyboard all of it is in the list of lanes, without four stops a lane.
    <button type="button" tabIndex={-1} aria-label={name} title={name} onClick={onClick}>
      {sign}
    </button>
  );
}

/** What a lane's series are: colours with names; a click hides one and shows it again. */
function Legend({ row }: { row: LaneRow }) {
  const { timeline } = useTab();
  const { whole, lane } = row;
  if (whole.series.length < 2) return null;
  const entries = whole.series.map(({ name, title }) => ({ name, title: clean(title, 40), on: lane.series.some((series) => series.name === name) }));
  return (
    <ul class={whole.kind === 'stack' ? 'tl-legend' : 'tl-legend inline'}>
      {(whole.kind === 'stack' ? entries.reverse() : entries).map(({ name, title, on }) => (
        <li key={name}>
          <button type="button" tabIndex={-1} aria-pressed={on} title={`${on ? 'Hide' : 'Show'} ${title}`} onClick={() => timeline.toggleSeries(row, name)}>
            <i class="swatch" style={{ background: `var(--${colourOf(whole, name)})` }} />
            <bdi>{title}</bdi>
          </button>
        </li>
      ))}
    </ul>
  );
}

/** A lane's name, legend and scale, and its value under the cursor, which the timeline writes by itself. */
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
      title={[row.origin, lane.title, lane.note].filter(Boolean).map((part) => clean(part, 400)).join('\n')}
    >
      <span class="tl-title">
        <bdi>{name}</bdi>
      </span>
      <span class="tl-scale" ref={scale} />
      <span class="tl-value" ref={value} data-value={row.key} />
      {row.origin && <bdi class="tl-origin">{clean(row.origin, 60)}</bdi>}
      <Legend row={row} />
      <span class="tl-tools">
        <Tool sign={row.pinned ? '⊖' : '⊕'} name={`${row.pinned ? 'Unpin' : 'Pin'} ${name}`} onClick={() => app.togglePin(row.key)} />
        {!row.pinned && <Tool sign="✕" name={`Hide ${name}`} onClick={() => app.toggle('hidden', row.key)} />}
      </span>
    </div>
  );
}
