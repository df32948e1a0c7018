/** Which lanes stand where: groups, order, heights. Pure; pixels are CSS pixels from the top. */
import type { LaneInfo } from '../api/types.ts';
import { clean } from '../math/text.ts';

export interface LaneSource {
  /** Recording id. */
  id: string;
  /** Shown before group names when several recordings are compared. */
  label: string;
  lanes: LaneInfo[];
  /** Titles of groups, e.g. "gpu0" -> "gpu0 · NVIDIA H200". */
  groupTitles: Record<string, string>;
}

export interface LanePreferences {
  /** Keys of groups that are not as they begin: closed, or opened where they begin closed. */
  collapsed: ReadonlySet<string>;
  /** Keys of lanes pinned to the top, in order. */
  pinned: readonly string[];
  /** Keys of lanes that are not shown. */
  hidden: ReadonlySet<string>;
  /** Keys of groups and lanes that were moved, with all their neighbours, in their new order. */
  order?: readonly string[];
}

export interface LaneRow {
  type: 'lane';
  key: string;
  source: string;
  lane: LaneInfo;
  top: number;
  height: number;
  pinned: boolean;
  /** Group title, shown where the group's header is not near (pinned lanes). */
  origin: string;
}

export interface GroupRow {
  type: 'group';
  key: string;
  title: string;
  top: number;
  height: number;
  collapsed: boolean;
  lanes: number;
}

export type Row = LaneRow | GroupRow;

export interface Layout {
  rows: Row[];
  height: number;
}

export const GROUP_HEIGHT = 24;

/** Whether `gpus`, as a finding names them, hold the GPU of a row's key; those of a row that is no GPU's never do. */
export function isAbout(gpus: readonly unknown[], key: string): boolean {
  const own = /#gpu(\d+)[^#]*$/.exec(key)?.[1];
  return gpus.some((gpu) => String(gpu).replace(/^gpu/, '') === own);
}

export const laneKey = (source: string, lane: string): string => `${source}#${lane}`;
export const groupKey = (source: string, group: string): string => `${source}#${group}`;

const PLAIN: Record<string, string> = { training: 'Training steps', host: 'Host', 'host cores': 'Host · each core' };

/** Each core has a lane; a machine has hundreds: they stand in a group of their own, closed at first. */
const CORES = 'host cores';
/** What a GPU's group shows at once; a GPU has thirty lanes, the others stand in a closed group below. */
const FIRST = /:(utilization|sm_active|tensor_active)_pct$|:throttle_|:(memory_used_bytes|power_mw|temperature_c|sm_clock_mhz)(\+|$)/;
const MORE = ' more';

const isFirst = (lane: LaneInfo): boolean => !lane.minor && FIRST.test(lane.id);

/** `split`: groups that have first lanes, so that the others stand apart. */
function groupOf(lane: LaneInfo, split: ReadonlySet<string>): string {
  if (/^host:cpu\d+_/.test(lane.id)) return CORES;
  return split.has(lane.group) && !isFirst(lane) ? lane.group + MORE : lane.group;
}

const startsClosed = (group: string): boolean => group === CORES || group.endsWith(MORE);

export function laneHeight(lane: LaneInfo, compact: boolean, room = 1): number {
  if (lane.kind === 'stack') return Math.round(room * (compact ? 104 : 116));
  if (lane.series.length > 1) return Math.round(room * (lane.series.length > 2 ? 70 : 62));
  if (lane.id.endsWith(':utilization_pct')) return Math.round(room * (compact ? 44 : 56));
  return Math.round(room * (compact ? 36 : 44));
}

function byGroup(lanes: LaneInfo[]): [string, LaneInfo[]][] {
  const groups = new Map<string, LaneInfo[]>();
  const split = new Set(lanes.filter((lane) => /^gpu\d+$/.test(lane.group) && isFirst(lane)).map(({ group }) => group));
  for (const lane of lanes) {
    const group = groupOf(lane, split);
    const list = groups.get(group);
    if (list) list.push(lane);
    else groups.set(group, [lane]);
  }
  const rank = (group: string): number => {
    if (group === 'training') return -1;
    const gpu = /^gpu(\d+)( more)?$/.exec(group);
    return gpu ? Number(gpu[1]) + (gpu[2] ? 0.5 : 0) : group === 'host' ? 1e6 : group === CORES ? 1e7 : 1e5;
  };
  return [...groups.entries()].sort((a, b) => rank(a[0]) - rank(b[0]));
}

/** All lanes by group, as they stand at first; `closed`: the group begins folded. */
export function lanesByGroup(lanes: LaneInfo[], titles: Record<string, string>): { group: string; title: string; closed: boolean; lanes: LaneInfo[] }[] {
  return byGroup(lanes).map(([group, list]) => ({ group, title: titleOf(group, titles), closed: startsClosed(group), lanes: list }));
}

function titleOf(group: string, titles: Record<string, string>): string {
  const of = group.endsWith(MORE) ? `${group.slice(0, -MORE.length)} · more` : group;
  return titles[group] ?? PLAIN[group] ?? clean(of, 60);
}

/** `room` above 1 makes lanes higher than they need to be. */
export function layOut(sources: LaneSource[], preferences: LanePreferences, compact: boolean, room = 1): Layout {
  const rows: Row[] = [];
  let top = 0;
  const many = sources.length > 1;
  const add = (row: LaneRow | GroupRow): void => {
    rows.push(row);
    top += row.height;
  };
  const lookup = new Map<string, { source: LaneSource; lane: LaneInfo; title: string }>();
  const named = (source: LaneSource, group: string): string => (many ? `${source.label} · ` : '') + titleOf(group, source.groupTitles);
  for (const source of sources)
    for (const lane of source.lanes)
      lookup.set(laneKey(source.id, lane.id), { source, lane, title: named(source, lane.group) });
  const pinned = preferences.pinned.filter((key) => lookup.has(key));
  for (const key of pinned) {
    const { source, lane, title } = lookup.get(key) as { source: LaneSource; lane: LaneInfo; title: string };
    const height = laneHeight(lane, compact, room);
    add({ type: 'lane', key, source: source.id, lane, top, height, pinned: true, origin: title });
  }
  const groups = sources.flatMap((source) =>
    byGroup(source.lanes).map(([group, lanes]) => ({ source, group, lanes })),
  );
  // Compared recordings stand group by group, so that like is next to like.
  if (many) {
    const order = [...new Set(byGroup(sources.flatMap((source) => source.lanes)).map(([group]) => group))];
    groups.sort((a, b) => order.indexOf(a.group) - order.indexOf(b.group));
  }
  const places = new Map((preferences.order ?? []).map((key, i) => [key, i]));
  const inOrder = <T>(list: T[], key: (item: T) => string): T[] => {
    // What has no header cannot be moved: it stays in front. What is new comes last.
    const place = (item: T): number => places.get(key(item)) ?? (!many && key(item).endsWith('#training') ? -1 : 1e9);
    return places.size === 0 ? list : [...list].sort((a, b) => place(a) - place(b));
  };
  for (const { source, group, lanes } of inOrder(groups, (one) => groupKey(one.source.id, one.group))) {
    const key = groupKey(source.id, group);
    const shown = lanes.filter((lane) => {
      const id = laneKey(source.id, lane.id);
      return !pinned.includes(id) && !preferences.hidden.has(id);
    });
    if (shown.length === 0 && lanes.every((lane) => pinned.includes(laneKey(source.id, lane.id)))) continue;
    const collapsed = preferences.collapsed.has(key) !== startsClosed(group);
    if (many || group !== 'training') {
      add({
        type: 'group', key, title: named(source, group), top, height: GROUP_HEIGHT, collapsed, lanes: shown.length,
      });
      if (collapsed) continue;
    }
    for (const lane of inOrder(shown, ({ id }) => laneKey(source.id, id))) {
      const height = laneHeight(lane, compact, room);
      add({
        type: 'lane', key: laneKey(source.id, lane.id), source: source.id, lane, top, height, pinned: false, origin: '',
      });
    }
  }
  return { rows, height: top };
}

/** Keys of the rows among which a row can be moved: the lanes of its group, or all groups. */
export function neighbours(layout: Layout, key: string): string[] {
  const at = layout.rows.findIndex((row) => row.key === key && !(row.type === 'lane' && row.pinned));
  const own = layout.rows[at];
  if (!own) return [];
  if (own.type === 'group') return layout.rows.filter(({ type }) => type === 'group').map((row) => row.key);
  let from = at;
  let to = at;
  const alike = (row: Row | undefined): boolean => row?.type === 'lane' && !row.pinned && row.source === own.source;
  while (alike(layout.rows[from - 1])) from--;
  while (alike(layout.rows[to + 1])) to++;
  return layout.rows.slice(from, to + 1).map((row) => row.key);
}

export function rowAt(layout: Layout, y: number): Row | null {
  for (const row of layout.rows) if (y >= row.top && y < row.top + row.height) return row;
  return null;
}
