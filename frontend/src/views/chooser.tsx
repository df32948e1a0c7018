/** Chooses the recording and those to compare it with; finds its way in thousands of runs. */
import { useEffect, useRef, useState } from 'preact/hooks';
import type { RecordingSummary, RunsReply } from '../api/types.ts';
import { count, plural, seconds } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { listed, ORDERS, type Order } from '../state/listing.ts';
import { causeStyle } from '../words/causes.ts';
import { fitLabel, runName, statusOf } from '../words/labels.ts';
import { useApp, useDismiss, useTab } from './hooks.ts';
import { Prose } from './prose.tsx';

/** Rows have one height, so that of thousands only those in sight are made. */
const ROW = 66;
const SHOWN = 16;
/** A list that one sees at a glance needs no search. */
const SHORT = 5;

export function Chooser() {
  const runs = useApp((state) => state.runs);
  const id = useApp((state) => state.id);
  const compare = useApp((state) => state.compare);
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useDismiss(open, () => setOpen(false), box);
  const list = runs?.recordings ?? [];
  if (!runs || list.length === 0) return null;
  const current = list.find((item) => item.id === id);
  const close = (): void => {
    setOpen(false);
    box.current?.querySelector<HTMLElement>('.chooser-button')?.focus();
  };
  return (
    <div class="menu chooser" ref={box}>
      <button type="button" class="pill chooser-button" aria-haspopup="dialog" aria-expanded={open} title={current && clean(current.run, 300)} onClick={() => setOpen(!open)}>
        <bdi class="clip">{current ? runName(current.run) : 'choose a run'}</bdi>
        {current && <bdi class="clip dim">{fitLabel(current)}</bdi>}
        {compare.length > 0 && <span class="count">+{compare.length}</span>}
        <span aria-hidden="true">▾</span>
      </button>
      {open && <List runs={runs} close={close} />}
    </div>
  );
}

function List({ runs, close }: { runs: RunsReply; close: () => void }) {
  const { app, refresh } = useTab();
  const id = useApp((state) => state.id);
  const [text, setText] = useState('');
  const [order, setOrder] = useState<Order>('newest');
  const [scroll, setScroll] = useState(0);
  /** Place of the row that Enter opens; -1 while nothing was typed and no arrow pressed. */
  const [at, setAt] = useState(-1);
  const box = useRef<HTMLDivElement>(null);
  const rows = useRef<HTMLUListElement>(null);
  const found = listed(runs.recordings, text, order);
  const first = Math.max(0, Math.min(Math.floor(scroll / ROW) - 3, found.length - SHOWN));
  useEffect(() => box.current?.querySelector<HTMLElement>('input[type=search], .current .choice, .choice')?.focus(), []);
  const open = (item: RecordingSummary): void => {
    app.choose(item.id);
    close();
    refresh();
  };
  const go = (to: number): void => {
    const next = Math.max(0, Math.min(to, found.length - 1));
    setAt(next);
    const list = box.current;
    if (!list || !rows.current) return;
    // The search field stays on top of the rows.
    const top = rows.current.offsetTop + next * ROW;
    const head = rows.current.offsetTop;
    if (top < list.scrollTop + head) list.scrollTop = top - head;
    else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  };
  const key = (event: KeyboardEvent): void => {
    const target = event.target as HTMLElement;
    const page = Math.max(1, Math.floor((box.current?.clientHeight ?? 0) / ROW) - 1);
    const now = at >= 0 ? at : text ? -1 : found.findIndex((item) => item.id === id);
    const places: Record<string, number> = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + page, PageUp: now - page };
    const to = places[event.key];
    if (to !== undefined && target.tagName !== 'SELECT') {
      go(to);
      // Without a search field the rows themselves have the focus.
      if (target.tagName !== 'INPUT') requestAnimationFrame(() => box.current?.querySelector<HTMLElement>('.active .choice')?.focus());
    }
    else if (event.key === 'Enter' && target.tagName === 'INPUT' && found[Math.max(0, at)]) open(found[Math.max(0, at)] as RecordingSummary);
    else return;
    event.preventDefault();
  };
  return (
    <div class="popover chooser-list" role="dialog" aria-label="Recordings" ref={box} onKeyDown={key} onScroll={(event) => setScroll(event.currentTarget.scrollTop)}>
      {runs.recordings.length > SHORT && (
        <div class="chooser-search">
          <input
            type="search"
            placeholder={`Search ${count(runs.recordings.length)} recordings: name, cause, verdict`}
            aria-label="Search recordings"
            aria-describedby="chooser-hint"
            value={text}
            onInput={(event) => {
              setText(event.currentTarget.value);
              setScroll(0);
              setAt(-1);
              if (box.current) box.current.scrollTop = 0;
            }}
          />
          <select aria-label="Order" value={order} onChange={(event) => setOrder(event.currentTarget.value as Order)}>
            {Object.entries(ORDERS).map(([value, title]) => (
              <option key={value} value={value}>
                {title}
              </option>
            ))}
          </select>
          <span class="hidden-text" id="chooser-hint">
            Arrow keys choose, Enter opens.
          </span>
          <span class="hidden-text" role="status">
            {at >= 0 && found[at] ? `${runName(found[at]?.run)}, ${clean(found[at]?.verdict, 200)}` : `${plural(found.length, 'recording')} found`}
          </span>
        </div>
      )}
      <ul ref={rows} style={{ height: `${found.length * ROW}px`, paddingTop: `${first * ROW}px` }}>
        {found.slice(first, first + SHOWN).map((item, i) => (
          <Row key={item.id} item={item} place={first + i} of={found.length} active={first + i === (at < 0 && text ? 0 : at)} trouble={troubleOf(runs, item)} open={() => open(item)} />
        ))}
      </ul>
      {found.length === 0 && <p class="dim">No recording matches.</p>}
      {runs.problems.slice(0, 20).map(({ path, message }, i) => (
        <p key={i} class="missing">
          <bdi>{clean(path, 200)}</bdi>{' '}
          <bdi>
            <Prose text={message} />
          </bdi>
        </p>
      ))}
    </div>
  );
}

/** What it said when it was well would mislead. */
function troubleOf(runs: RunsReply, { id }: RecordingSummary): string | undefined {
  const found = runs.problems.find(({ path }) => path.endsWith(id.slice(id.lastIndexOf('/'))));
  return found && `⚠ ${found.message}`;
}

interface RowProps {
  item: RecordingSummary;
  place: number;
  of: number;
  active: boolean;
  trouble: string | undefined;
  open: () => void;
}

function Row({ item, place, of, active, trouble, open }: RowProps) {
  const { app, refresh } = useTab();
  const id = useApp((state) => state.id);
  const compared = useApp((state) => state.compare.includes(item.id));
  return (
    <li class={[item.id === id && 'current', active && 'active'].filter(Boolean).join(' ')} aria-setsize={of} aria-posinset={place + 1}>
      <button type="button" class="choice" aria-current={item.id === id} title={clean(item.run, 300)} onClick={open}>
        <span class="choice-head">
          <b>
            <bdi>{runName(item.run, 300)}</bdi>
          </b>
          {!!item.lost_s && (
            <span class="lost">
              {(item.causes ?? []).slice(0, 4).map((cause) => (
                <span key={cause} class="glyph" style={{ '--cause': `var(--${causeStyle(cause).colour})` }} title={causeStyle(cause).title}>
                  {causeStyle(cause).glyph}{' '}
                </span>
              ))}
              {seconds(item.lost_s)} lost
            </span>
          )}
        </span>
        <span class="choice-text clip">
          <span class={`status status-${clean(item.status, 20)}`}>
            <i aria-hidden="true" />
            {statusOf(item.status).title}
          </span>{' '}
          <bdi>{fitLabel(item, true)}</bdi>
        </span>
        <span class="choice-text choice-verdict clip">
          <bdi>{clean(trouble ?? item.verdict, 200) || plural(item.steps ?? 0, 'step')}</bdi>
        </span>
      </button>
      {item.id !== id && (
        <label class="choice-compare" title="Show its lanes below the chosen run's">
          <input
            type="checkbox"
            checked={compared}
            onChange={(event) => {
              app.compareWith(item.id, event.currentTarget.checked);
              refresh();
            }}
          />
          compare
        </label>
      )}
    </li>
  );
}
