/** All runs: where their time went, and a table of them that stays quick with ten thousand rows. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { RecordingSummary, RunsReply, TotalReply, TrainingRow } from '../api/types.ts';
import { isOffline, isTable } from '../api/client.ts';
import { count, date, duration, hoursText, plural, share } from '../math/format.ts';
import { clean, held } from '../math/text.ts';
import { matching, ordered, rowsOf, type Column, type Row } from '../state/table.ts';
import { causeStyle } from '../words/causes.ts';
import { fitLabel, runName, statusOf } from '../words/labels.ts';
import { useApp, useTab } from './hooks.ts';
import { Prose } from './prose.tsx';

/** Rows in each direction beyond those in sight. */
const SPARE = 6;
/** A table that one sees at a glance needs no search. */
const SHORT = 5;
const MENDED_FIRST = 3;
const MOST_PROBLEMS = 20;

const columns = (unit: TotalReply['unit'] | undefined): [Column, string][] => [
  ['name', 'Run'],
  ['start', 'Started'],
  ['status', 'Status'],
  ['wall', 'Wall'],
  ['hours', unit === 'hours' ? 'Hours' : 'GPU-hours'],
  ['lost', 'Lost'],
  ['saves', 'Saves up to'],
  ['cause', 'Top cause'],
];
/** The order in which a column is first sorted: names and causes from A to Z, of numbers the largest first. */
const firstOrder = (column: Column): string => (column === 'name' || column === 'cause' || column === 'status' ? column : `-${column}`);

interface Line {
  row: Row;
  /** The training that it is a recording of. */
  parent: Row | null;
}

/** The table of all runs: sums of their time, a search, and a row for each. */
export function Runs({ runs }: { runs: RunsReply }) {
  const { app, refresh } = useTab();
  const total = useApp((state) => state.total);
  const id = useApp((state) => state.id);
  const compare = useApp((state) => state.compare);
  const [sort, search, cause] = [useApp((state) => state.sort), useApp((state) => state.search), useApp((state) => state.cause)];
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  const [at, setPlace] = useState(app.left.at);
  const { box, rows, first, shown, height, reveal } = useRows();
  const all = useMemo(() => rowsOf(runs, total), [runs, total]);
  const inOrder = useMemo(() => ordered(all, sort), [all, sort]);
  const matches = useMemo(() => matching(inOrder, search, cause), [inOrder, search, cause]);
  const lines = useMemo(() => matches.flatMap((row): Line[] => [{ row, parent: null }, ...(opened.has(row.item.id) ? row.parts.map((part) => ({ row: part, parent: row })) : [])]), [matches, opened]);
  const setAt = (place: number): void => {
    app.left.at = place;
    setPlace(place);
  };
  useEffect(() => {
    // A screen keyboard would cover what one came for.
    const search = matchMedia('(pointer: coarse)').matches ? null : box.current?.querySelector<HTMLInputElement>('input[type=search]');
    (search ?? box.current?.querySelector<HTMLElement>('[role=treegrid]'))?.focus({ preventScroll: true });
    search?.select();
    return () => {
      if (document.activeElement === document.body) document.querySelector<HTMLElement>('.chooser-button')?.focus();
    };
  }, []);
  const by = (change: { sort?: string; search?: string; cause?: string }): void => {
    app.listBy(change);
    setPlace(-1);
    if (box.current) box.current.scrollTop = Math.min(box.current.scrollTop, box.current.querySelector<HTMLElement>('.runs-search, .runs-head')?.offsetTop ?? 0);
  };
  // Neither is made again while rows scroll by.
  const causes = useMemo(() => causesIn(all, cause), [all, cause]);
  const sums = useMemo(
    () => all.length > 1 && <Sums total={total} runs={runs} cause={cause} byCause={(next) => by({ cause: next })} by={(sort) => by({ sort, search: '', cause: '' })} />,
    [all, cause],
  );
  const open = ({ row }: Line, place: number): void => {
    setAt(place);
    if (isTable) return;
    app.choose(row.item.id);
    app.openList(false);
    refresh();
  };
  const toggle = ({ row }: Line): void => {
    const next = new Set(opened);
    if (!next.delete(row.item.id)) next.add(row.item.id);
    setOpened(next);
  };
  const compareWith = ({ row }: Line): void => {
    app.compareWith(row.item.id, !compare.includes(row.item.id));
    refresh();
  };
  const go = (to: number): void => {
    const next = Math.max(0, Math.min(to, lines.length - 1));
    setAt(next);
    reveal(next);
  };
  const key = (event: KeyboardEvent): void => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || target.matches('select, button, [type=checkbox]')) return;
    const typing = target.matches('input');
    const page = Math.max(1, shown - 2 * SPARE - 1);
    let now = at;
    if (now < 0 && !search) now = lines.findIndex(({ row }) => row.item.id === id);
    const places: Record<string, number> = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + page, PageUp: now - page, ...(typing ? {} : { Home: 0, End: lines.length - 1 }) };
    const to = places[event.key];
    const place = at < 0 && typing ? 0 : now;
    const line = lines[place];
    const isOpen = !!line && opened.has(line.row.item.id);
    if (to !== undefined) go(to);
    else if (event.key === 'Escape' && typing && search) by({ search: '' });
    else if (!line) return;
    else if (event.key === 'Enter') open(line, place);
    else if (typing) return;
    else if (event.key === ' ' && !isTable && line.row.item.id !== id) compareWith(line);
    else if (event.key === 'ArrowRight' && line.row.parts.length > 0 && !isOpen) toggle(line);
    else if (event.key === 'ArrowLeft' && isOpen) toggle(line);
    else if (event.key === 'ArrowLeft' && line.parent) go(lines.findIndex(({ row }) => row === line.parent));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const active = at < 0 && search ? 0 : at;
  const from = Math.max(0, Math.min(first, lines.length - shown));
  const there = active >= from && active < from + shown && active < lines.length ? `run-${active}` : undefined;
  return (
    <main class="runs" ref={box} onKeyDown={key}>
      {sums}
      <Problems problems={runs.problems} />
      {runs.recordings.length > SHORT && (
        <div class="runs-search">
          <input
            type="search"
            placeholder={`Search ${plural(all.length, 'run')}: name, cause, verdict, script, host`}
            aria-label="Search runs"
            aria-describedby="runs-hint"
            aria-controls="runs-table"
            aria-activedescendant={there}
            role="combobox"
            aria-expanded="true"
            aria-haspopup="grid"
            value={search}
            onInput={(event) => by({ search: event.currentTarget.value })}
          />
          <select aria-label="Cause" value={cause} onChange={(event) => by({ cause: event.currentTarget.value })}>
            <option value="">any cause</option>
            {causes.map((option) => (
              <option key={option} value={option}>
                {causeStyle(option).title}
              </option>
            ))}
          </select>
          <select class="runs-order" aria-label="Order" value={sort} onChange={(event) => by({ sort: event.currentTarget.value })}>
            {[...new Set([sort, '-start', ...columns(total?.unit).map(([column]) => firstOrder(column))])].map((value) => (
              <option key={value} value={value}>
                {orderText(value, total?.unit)}
              </option>
            ))}
          </select>
          <span class="dim runs-count" role="status">
            {at >= 0 && lines[at] ? <span class="hidden-text">{`${runName(lines[at]?.row.item.run)}, ${clean(lines[at]?.row.item.verdict, 200)}`}</span> : null}
            {matches.length === all.length ? plural(all.length, 'run') : `${count(matches.length)} of ${plural(all.length, 'run')}`}
          </span>
          <span class="dim wide" id="runs-hint">
            {!isTable && '↑ ↓ choose, Enter opens, Space compares'}
          </span>
        </div>
      )}
      <div class="runs-table chooser-list" role="treegrid" id="runs-table" tabIndex={0} aria-label="Runs" onFocus={(event) => at < 0 && event.target === event.currentTarget && lines.length > 0 && setAt(Math.max(0, lines.findIndex(({ row }) => row.item.id === id)))} aria-rowcount={lines.length + 1} aria-activedescendant={there}>
        <div class="runs-head" role="row" aria-rowindex={1}>
          {columns(total?.unit).map(([column, title]) => (
            <Head key={column} column={column} title={title} sort={sort} by={(next) => by({ sort: next })} />
          ))}
          <span role="columnheader">
            <span class="hidden-text">Compare</span>
          </span>
        </div>
        <div class="runs-rows" role="rowgroup" ref={rows} style={{ height: `${lines.length * height}px`, paddingTop: `${from * height}px` }}>
          {lines.slice(from, from + shown).map((line, i) => (
            <RunRow
              key={`${line.parent ? '+' : ''}${line.row.item.id}`}
              line={line}
              place={from + i}
              active={from + i === active}
              current={line.row.item.id === id || line.row.parts.some(({ item }) => item.id === id)}
              shown={line.row.item.id === id}
              expanded={opened.has(line.row.item.id)}
              compared={compare.includes(line.row.item.id)}
              trouble={troubleOf(runs, line.row.item)}
              open={() => open(line, from + i)}
              toggle={() => toggle(line)}
              compare={() => compareWith(line)}
            />
          ))}
        </div>
      </div>
      {matches.length === 0 && (
        <p class="runs-none dim">
          No run matches.{' '}
          <button type="button" class="linklike" onClick={() => by({ search: '', cause: '' })}>
            Show all
          </button>
        </p>
      )}
      {runs.complete === false && (
        <p class="dim runs-none">Still looking through the log directory: {runs.progress?.map(count).join(' of ')} read.</p>
      )}
    </main>
  );
}

/** What could not be read; of many the first ones. */
export function Problems({ problems }: Pick<RunsReply, 'problems'>) {
  if (problems.length === 0) return null;
  return (
    <details class="runs-problems" open={problems.length < 3}>
      <summary>
        <span aria-hidden="true">⚠ </span>
        {plural(problems.length, 'problem')} in reading this log directory
      </summary>
      {problems.slice(0, MOST_PROBLEMS).map(({ path, message }, i) => (
        <p key={i} class="missing">
          <bdi>{clean(path, 200)}</bdi>{' '}
          <bdi>
            <Prose text={message} />
          </bdi>
        </p>
      ))}
      {problems.length > MOST_PROBLEMS && <p class="dim">and {count(problems.length - MOST_PROBLEMS)} more</p>}
    </details>
  );
}

/** Which rows are in sight of the scroller, all being of one height; what comes before them scrolls with them. */
function useRows() {
  const { app } = useTab();
  const box = useRef<HTMLElement>(null);
  const rows = useRef<HTMLDivElement>(null);
  const [{ first, shown, height }, set] = useState({ first: 0, shown: 30, height: 46 });
  useLayoutEffect(() => {
    const scroller = box.current as HTMLElement;
    const look = (): void => {
      const own = rows.current as HTMLElement;
      const height = parseFloat(getComputedStyle(scroller).getPropertyValue('--row')) || 46;
      const first = Math.max(0, Math.floor((scroller.scrollTop - own.offsetTop) / height) - SPARE);
      const shown = Math.ceil(scroller.clientHeight / height) + 2 * SPARE;
      app.left.scroll = scroller.scrollTop;
      set((old) => (old.first === first && old.shown === shown && old.height === height ? old : { first, shown, height }));
    };
    const { scroll } = app.left;
    look();
    // Rows that are not there yet cannot be scrolled to.
    requestAnimationFrame(() => {
      scroller.scrollTop = scroll;
    });
    scroller.addEventListener('scroll', look, { passive: true });
    addEventListener('resize', look);
    return () => {
      app.left.scroll = scroller.scrollTop || app.left.scroll;
      scroller.removeEventListener('scroll', look);
      removeEventListener('resize', look);
    };
  }, []);
  /** Scrolls a row out from under the heads, which stay on top. */
  const reveal = (place: number): void => {
    const [scroller, own] = [box.current, rows.current];
    if (!scroller || !own) return;
    const top = own.offsetTop + place * height;
    const head = [...scroller.querySelectorAll<HTMLElement>('.runs-search, .runs-head')].reduce((sum, element) => sum + element.offsetHeight, 0);
    if (top < scroller.scrollTop + head) scroller.scrollTop = top - head;
    else if (top + height > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + height - scroller.clientHeight;
  };
  return { box, rows, first, shown, height, reveal };
}

const causesIn = (rows: readonly Row[], chosen: string): string[] => {
  const causes = new Set(rows.flatMap((row) => row.causes));
  if (chosen) causes.add(chosen);
  return [...causes].sort((a, b) => causeStyle(a).title.localeCompare(causeStyle(b).title, 'en'));
};

const ORDERS: Readonly<Record<string, string>> = { '-start': 'newest first', name: 'by name', '-lost': 'most lost first', '-saves': 'worth fixing most first', cause: 'by cause', status: 'by status' };

function orderText(sort: string, unit: TotalReply['unit'] | undefined): string {
  const title = columns(unit).find(([column]) => column === sort.replace('-', ''))?.[1] ?? sort;
  return ORDERS[sort] ?? `${title.toLowerCase()}, ${sort.startsWith('-') ? 'largest' : 'smallest'} first`;
}

/** A column's heading, which sorts by it; another click turns the order around. */
function Head({ column, title, sort, by }: { column: Column; title: string; sort: string; by: (sort: string) => void }) {
  const sorted = sort.replace('-', '') === column;
  const down = sort.startsWith('-');
  const reversed = down ? column : `-${column}`;
  const [direction, arrow] = down ? (['descending', ' ▾'] as const) : (['ascending', ' ▴'] as const);
  return (
    <span role="columnheader" class={`run-${column}`} aria-sort={sorted ? direction : 'none'}>
      <button type="button" onClick={() => by(sorted ? reversed : firstOrder(column))}>
        {title}
        <span aria-hidden="true">{sorted ? arrow : ''}</span>
      </button>
    </span>
  );
}

/** What it said when it was well would mislead. */
function troubleOf(runs: RunsReply, { id }: RecordingSummary): string | undefined {
  const problem = runs.problems.find(({ path }) => path.endsWith(id.slice(id.lastIndexOf('/'))));
  return problem && `⚠ ${problem.message}`;
}

interface RowProps {
  line: Line;
  place: number;
  active: boolean;
  /** It or a part of it is the open run; it is that itself. */
  current: boolean;
  shown: boolean;
  expanded: boolean;
  compared: boolean;
  trouble: string | undefined;
  open: () => void;
  toggle: () => void;
  compare: () => void;
}

/** A run in the table, or one part of a job below it. */
function RunRow({ line: { row, parent }, place, active, current, shown, expanded, compared, trouble, open, toggle, compare }: RowProps) {
  const { item, training } = row;
  const hasHours = row.hours !== null;
  const lost = hasHours ? hoursText(row.lost) : duration(row.lost);
  const whole = hasHours ? row.hours : row.wall;
  const mixed = useApp((state) => state.total?.unit === 'gpu_hours');
  const inside = (event: Event): boolean => !!(event.target as HTMLElement).closest('label, .run-parts');
  return (
    <div
      role="row"
      id={`run-${place}`}
      class={['choice', current && 'current', active && 'active', parent && 'run-part'].filter(Boolean).join(' ')}
      aria-level={parent ? 2 : 1}
      aria-rowindex={place + 2}
      aria-selected={active}
      aria-expanded={row.parts.length > 0 ? expanded : undefined}
      onClick={(event) => !inside(event) && open()}
    >
      <span role="gridcell" class="run-name" title={`${clean(item.run, 300)}\n${plural(item.steps ?? 0, 'step')}`}>
        <span class="run-head">
          <b>
            <bdi>{runName(item.run, 300)}</bdi>
          </b>
          {row.parts.length > 0 && (
            <button type="button" class="run-parts" tabIndex={-1} onClick={toggle}>
              {expanded ? '▾' : '▸'} {partsText(row)}
            </button>
          )}
          <bdi class="dim clip">
            <span class="narrow">{date(row.start || null)} · </span>
            {[fitLabel({ ...item, start_ns: null }), clean(training?.user, 40), clean(training?.script, 60)].filter(Boolean).join(' · ')}
          </bdi>
        </span>
        <span class="choice-verdict dim clip">
          <bdi>{clean(trouble ?? item.verdict, 200) || plural(item.steps ?? 0, 'step')}</bdi>
        </span>
      </span>
      <span role="gridcell" class="run-start dim">
        {date(row.start || null)}
      </span>
      <span role="gridcell" class="run-status">
        <span class={`status status-${clean(row.status, 20)}`}>
          <i aria-hidden="true" />
          {statusOf(row.status, item.job_source).title}
        </span>
      </span>
      <span role="gridcell" class="run-wall">
        {duration(row.wall)}
      </span>
      <span role="gridcell" class="run-hours">
        {row.noGpu && mixed ? <span class="dim">no GPU</span> : hoursText(row.hours)}
      </span>
      <span role="gridcell" class="run-lost">
        {row.lost ? (
          <>
            <span class="lost">{lost}</span> <small class="dim">{share(row.lost, whole)}</small>
            <i class="run-bar" aria-hidden="true">
              <i style={{ width: `${Math.min(100, (100 * row.lost) / (whole || Infinity))}%`, background: `var(--${causeStyle(row.causes[0] ?? '').colour})` }} />
            </i>
          </>
        ) : (
          <span class="dim">{row.lost === 0 ? '0' : '–'}</span>
        )}
        {row.noGpu && mixed && row.lost ? <small class="dim"> wall</small> : null}
      </span>
      <span role="gridcell" class="run-saves">
        {row.saves ? hoursText(row.saves) : <span class="dim">{row.saves === 0 ? '0' : '–'}</span>}
      </span>
      <span role="gridcell" class="run-cause">
        {row.causes[0] ? <Cause cause={row.causes[0]} others={row.causes.slice(1)} /> : <span class="dim">–</span>}
      </span>
      <span role="gridcell" class="run-compare">
        {!shown && !isTable && (
          <label class="choice-compare" title="Show its lanes below the open run's">
            <input type="checkbox" tabIndex={-1} checked={compared} onChange={compare} />
            <span>compare</span>
          </label>
        )}
      </span>
    </div>
  );
}

/** "8 ranks", "3 starts", or both. */
function partsText({ training, parts }: Row): string {
  const said = [];
  if (training && training.ranks > 1) said.push(plural(training.ranks, 'rank'));
  if (training && training.restarts > 0) said.push(plural(training.restarts, 'restart'));
  return said.join(', ') || plural(parts.length, 'recording');
}

/** The sign of a cause, in its colour. */
function Glyph({ cause }: { cause: string }) {
  const { colour, glyph } = causeStyle(cause);
  return (
    <span class="glyph" aria-hidden="true" style={{ '--cause': `var(--${colour})` }}>
      {glyph}{' '}
    </span>
  );
}

/** A run's first cause by name, and the number of others. */
function Cause({ cause, others }: { cause: string; others: string[] }) {
  return (
    <span class="clip" title={[cause, ...others].map((listed) => causeStyle(listed).title).join('\n')}>
      <Glyph cause={cause} />
      {causeStyle(cause).title}
      {others.length > 0 && <small class="dim"> +{others.length}</small>}
    </span>
  );
}

interface SumsProps {
  total: TotalReply | null;
  runs: RunsReply;
  cause: string;
  byCause: (cause: string) => void;
  by: (sort: string) => void;
}

/** Where the time of all runs went, in the terminal's words; a cause in it shows the runs it was found in. */
function Sums({ total, runs, cause, byCause, by }: SumsProps) {
  const { app, refresh } = useTab();
  const error = useApp((state) => state.totalError);
  if (!total) {
    if (isOffline) return null;
    return <p class="sums dim">{error ? `The sums of all runs could not be made: ${error}` : 'Adding up where the time of all runs went…'}</p>;
  }
  const summaryOfId = new Map(runs.recordings.map((item) => [item.id, item]));
  const worth = total.runs.filter(({ id, saves }) => saves && summaryOfId.has(id)).slice(0, MENDED_FIRST);
  const most = total.runs.filter(({ id, lost }) => lost && summaryOfId.has(id)).reduce<TrainingRow | null>((most, run) => ((run.lost ?? 0) > (most?.lost ?? 0) ? run : most), null);
  const opener = ({ id, top }: TrainingRow, what: string) => (
    <button
      type="button"
      class="small"
      title={`${clean(summaryOfId.get(id)?.run, 300)}\n${clean(total.fixes[id], 600)}`}
      onClick={() => {
        if (isTable) return;
        app.choose(id);
        app.openList(false);
        refresh();
      }}
    >
      <Glyph cause={top ?? ''} />
      <bdi class="clip">{runName(summaryOfId.get(id)?.run)}</bdi> <span class="dim">{what}</span>
    </button>
  );
  const causes = total.causes.filter(({ hours }) => hours > 0);
  const parts = total.shares.filter(({ part, hours }) => hours > 0 && (part !== 'lost' || causes.length === 0));
  const productive = parts.filter(({ part }) => part === 'productive');
  const rest = parts.filter(({ part }) => part !== 'productive');
  const bar = [
    ...productive.map(({ part, title, hours }) => ({ key: part, colour: 'busy', idle: false, title, hours })),
    ...causes.map(({ cause: costliest, title, hours }) => ({ key: costliest, colour: causeStyle(costliest).colour, idle: false, title, hours })),
    ...rest.map(({ part, title, hours }) => ({ key: part, colour: part === 'lost' ? 'slate' : 'rest', idle: part === 'not_judged', title, hours })),
  ];
  return (
    <section class="sums" aria-label="All runs">
      <h1>
        {(runs.complete === false || !!total.left) && 'So far: '}
        {held(clean(total.headline, 600))}
      </h1>
      {total.hours > 0 && (
        <div class="bar" aria-hidden="true">
          {bar.map(({ key, colour, idle, title, hours }) => (
            <div key={key} class={idle ? 'bar-part idle' : 'bar-part'} style={{ flexGrow: hours / total.hours, background: `var(--${colour})` }} title={`${title}: ${hoursText(hours)} (${share(hours, total.hours)})`}>
              <span>{share(hours, total.hours)}</span>
            </div>
          ))}
        </div>
      )}
      <ul class="sums-parts">
        {productive.map(({ part, title, hours }) => (
          <li key={part}>
            <i class="swatch" style={{ background: 'var(--busy)' }} />
            {title} <b>{hoursText(hours)}</b>
          </li>
        ))}
        {causes.map(({ cause: causeName, title, hours }) => (
          <li key={causeName}>
            <button
              type="button"
              class="small"
              aria-pressed={cause === causeName}
              title={`Show the runs it was found in${cause === causeName ? '' : ' alone'}`}
              onClick={() => byCause(cause === causeName ? '' : causeName)}
            >
              <Glyph cause={causeName} />
              {clean(title, 60)} <b>{hoursText(hours)}</b>
            </button>
          </li>
        ))}
        {rest.map(({ part, title, hours }) => (
          <li key={part}>
            <i class={part === 'not_judged' ? 'swatch idle' : 'swatch'} style={{ background: 'var(--rest)' }} />
            {title} <b>{hoursText(hours)}</b>
          </li>
        ))}
      </ul>
      {(worth.length > 0 || most) && (
        <p class="sums-worth">
          {worth.length > 0 && (
            <button type="button" class="linklike" title="The table in this order" onClick={() => by('-saves')}>
              Fix first
            </button>
          )}
          {worth.map((run) => (
            <>
              {opener(run, `saves up to ${hoursText(run.saves)}`)}
              {isTable && <code class="fix clip">{clean(total.fixes[run.id], 300)}</code>}
            </>
          ))}
          {most && (
            <>
              <button type="button" class="linklike" title="The table in this order" onClick={() => by('-lost')}>
                Lost most
              </button>
              {opener(most, `${hoursText(most.lost)} lost`)}
            </>
          )}
        </p>
      )}
      {total.notes.length > 0 && <p class="facts">{clean(total.notes.join(' '), 1000)}</p>}
      {!!total.left && <p class="facts">{plural(total.left, 'run')} without a stored diagnosis {total.left === 1 ? 'is' : 'are'} still being judged.</p>}
      {error && <p class="missing">{error}</p>}
    </section>
  );
}
