/** The deep link: what is shown, written into TensorBoard's own `#plugin&p.plugin.key=value` hash. */
import type { Range } from '../math/range.ts';

export type AxisChoice = 'steps' | 'time' | 'clock';

export interface LinkState {
  id: string | null;
  compare: string[];
  axis: AxisChoice;
  view: Range | null;
  /** The view moves on with the end of a live run. */
  follow: boolean;
  selected: string | null;
  /** A span was chosen or closed by a person. */
  touched: boolean;
  tables: boolean;
  measure: Range | null;
  collapsed: string[];
  pinned: string[];
  hidden: string[];
  window: OpenWindow | null;
  /** The table of all runs is shown. */
  list: boolean;
  /** Its order: a column, after a minus where the largest is first. */
  sort: string;
  /** Which of its rows: words in them, a cause found in them. */
  search: string;
  cause: string;
}

/** The profiler window that is open: its number, and the traced step shown, null until it is known. */
export interface OpenWindow {
  number: number;
  step: number | null;
  /** Where it was clicked on a time axis, since the epoch; not part of a link. */
  ns?: number;
}

const NEWEST = '-start';

export const EMPTY_LINK: LinkState = {
  id: null, compare: [], axis: 'time', view: null, follow: false, selected: null, touched: false, tables: false, measure: null, collapsed: [], pinned: [], hidden: [], window: null,
  list: false, sort: NEWEST, search: '', cause: '',
};

export const PLUGIN = 'gpu_utilization';
const PREFIX = `p.${PLUGIN}.`;

const number = (value: number): string => String(Number(value.toPrecision(12)));

function encodeRange(range: Range | null): string {
  return range ? `${number(range.start)}~${number(range.end)}` : '';
}

/** A range from "start~end", in units of the axis; null if it is none. */
function decodeRange(text: string | undefined): Range | null {
  const [start, end, extra] = (text ?? '').split('~').map(Number);
  if (start === undefined || end === undefined || extra !== undefined) return null;
  return Number.isFinite(start) && Number.isFinite(end) && end > start ? { start, end } : null;
}

const encodeWindow = (open: OpenWindow | null): string => (open ? [open.number, open.step].filter((part) => part !== null).join('~') : '');

function decodeWindow(text: string | undefined): OpenWindow | null {
  const match = /^(\d{1,9})(?:~(\d{1,15}))?$/.exec(text ?? '');
  return match ? { number: Number(match[1]), step: match[2] === undefined ? null : Number(match[2]) } : null;
}

const encodeList = (list: Iterable<string>): string => [...list].map(encodeURIComponent).join(',');

/** A decoded part of a link; "" if it is broken. */
function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return ''; // a broken link opens what it can
  }
}

const decodeList = (text: string | undefined): string[] =>
  (text ?? '').split(',').map(decode).filter((item) => item !== '').slice(0, 500);

/** What a link is made of: the state of the tab, or another link. */
type Linked = Omit<LinkState, 'collapsed' | 'hidden'> & Record<'collapsed' | 'hidden', Iterable<string>>;

/** `hash` with our keys replaced by `state`; everybody else's keys stay. */
export function encodeHash(hash: string, state: Linked): string {
  const foreign = hash.replace(/^#/, '').split('&').filter((part) => part && !part.startsWith(PREFIX) && part.includes('='));
  const ours: Record<string, string> = {
    id: state.id ?? '',
    with: encodeList(state.compare),
    axis: state.axis === 'time' ? '' : state.axis,
    view: encodeRange(state.view),
    follow: state.follow ? '1' : '',
    span: state.selected ?? '',
    range: encodeRange(state.measure),
    window: encodeWindow(state.window),
    tables: state.tables ? '1' : '',
    closed: encodeList(state.collapsed),
    pinned: encodeList(state.pinned),
    hidden: encodeList(state.hidden),
    // One leaves the table and finds it as it was by going back, not by each link to a run.
    ...(state.list ? { list: '1', sort: state.sort === NEWEST ? '' : state.sort, search: state.search, cause: state.cause } : {}),
  };
  const parts = Object.entries(ours)
    .filter(([, value]) => value !== '')
    .map(([key, value]) => `${PREFIX}${key}=${encodeURIComponent(value)}`);
  return `#${[PLUGIN, ...foreign, ...parts].join('&')}`;
}

/** What a link says of the tab, each part at its default where the link lacks it or has nonsense. */
export function decodeHash(hash: string): LinkState {
  const values = new Map<string, string>();
  for (const part of hash.replace(/^#/, '').split('&')) {
    const at = part.indexOf('=');
    if (at > 0 && part.startsWith(PREFIX)) values.set(part.slice(PREFIX.length, at), decode(part.slice(at + 1)));
  }
  const axis = values.get('axis');
  const span = values.get('span');
  const window = decodeWindow(values.get('window'));
  return {
    id: values.get('id') || null,
    compare: decodeList(values.get('with')),
    axis: axis === 'steps' || axis === 'clock' ? axis : 'time',
    view: decodeRange(values.get('view')),
    follow: values.has('follow'),
    selected: span || null,
    touched: !!(span || window),
    tables: values.has('tables'),
    measure: decodeRange(values.get('range')),
    collapsed: decodeList(values.get('closed')),
    pinned: decodeList(values.get('pinned')),
    hidden: decodeList(values.get('hidden')),
    window,
    list: values.has('list'),
    sort: /^-?[a-z]{1,12}$/.exec(values.get('sort') ?? '')?.[0] ?? NEWEST,
    search: (values.get('search') ?? '').slice(0, 200),
    cause: (values.get('cause') ?? '').slice(0, 60),
  };
}

/** The window whose address bar people copy: TensorBoard's, or our own when it cannot be reached. */
export function addressWindow(): Window {
  try {
    // The value is used: a minifier drops a bare access, and with it the error of another origin.
    return typeof window.parent.location.hash === 'string' ? window.parent : window;
  } catch {
    return window;
  }
}
