/** Which lanes stand where: groups, order, heights. Pure; pixels are CSS pixels from the top. */
import type { LaneInfo } from '../api/types.ts';
import { clean } from '../math/text.ts';

export interface LaneSource {
  /** Recording id. */
  id: string;
  /** Shown before group names when several recordings are compared. */
  label: string;
  lanes: LaneInfo[];
  /** Whose lanes stand in front of whose, where others are drawn in them; else "". */
  front?: string;
  /** Titles of groups, e.g. "gpu0" -> "gpu0 · NVIDIA H200". */
  groupTitles: Record<string, string>;
  /** GPUs that a finding names: of many GPUs these begin open. */
  named?: ReadonlySet<string>;
}

export interface LanePreferences {
  /** Keys of groups that are not as they begin: closed, or opened where they begin closed. */
  collapsed: ReadonlySet<string>;
  /** Keys of lanes pinned to the top, in order. */
  pinned: readonly string[];
  /** Keys of lanes, and of single series of lanes, that are not shown. */
  hidden: ReadonlySet<string>;
}

export interface LaneRow {
  type: 'lane';
  key: string;
  source: string;
  /** The lane with the series that are shown. */
  lane: LaneInfo;
  /** The lane as it is, with all of its series. */
  whole: LaneInfo;
  top: number;
  height: number;
  pinned: boolean;
  /** What the row belongs to where its header does not say so: the group of a pinned lane, the run of a compared one. */
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
export const seriesRowKey = (lane: string, series: string): string => `${lane}~${series}`;

const PLAIN: Record<string, string> = { training: 'Training steps', model: 'Model', host: 'Host', 'host cores': 'Host · each core' };

/** Each core has a lane; a machine has hundreds: they stand in a group of their own, closed at first. */
const CORES = 'host cores';
/** What a GPU's group shows at once; a GPU has thirty lanes, the others stand in a closed group below. */
const FIRST = /:(utilization|mfu|sm_active|tensor_active)_pct$|:throttle_|:(memory_used_bytes|power_mw|temperature_c|sm_clock_mhz)(\+|$)/;
const MORE = ' more';

const isFirst = (lane: LaneInfo): boolean => !lane.minor && (lane.group === 'host' || FIRST.test(lane.id));

/** How busy a GPU was: by the driver's samples, or by a trace. */
const UTILIZATION = /^gpu\d+(?:\/\w+)?:(utilization|kernel_busy)_pct$/;

/** `split`: groups that have first lanes, so that the others stand apart. */
function groupOf(lane: LaneInfo, split: ReadonlySet<string>): string {
  if (/^host:cpu\d+_/.test(lane.id)) return CORES;
  return split.has(lane.group) && !isFirst(lane) ? lane.group + MORE : lane.group;
}

/** From this many GPUs on, those that a finding names stand first. */
export const MANY_GPUS = 9;

/** Groups of the GPUs that stand first where there are many: those that a finding names. */
function firstGpus({ lanes, named = new Set() }: Pick<LaneSource, 'lanes' | 'named'>): ReadonlySet<string> {
  const gpus = new Set(lanes.map(({ group }) => group).filter((group) => /^gpu\d+$/.test(group)));
  return gpus.size < MANY_GPUS ? new Set() : named;
}

/** How a step went is open at first; everything else is a click away. */
const beginsClosed = (group: string): boolean => group !== 'training';

/** A lane's height in pixels; `room` stretches all lanes on a large screen, 1 to 2. */
export function laneHeight(lane: LaneInfo, compact: boolean, room = 1): number {
  if (lane.kind === 'stack') return Math.round(room * (compact ? 104 : 112));
  if (lane.series.length > 1) return Math.round(room * (lane.series.length > 2 ? 70 : 62));
  if (UTILIZATION.test(lane.id)) return Math.round(room * (compact ? 56 : 64));
  return Math.round(room * (compact ? 36 : 44));
}

/** All but the lanes of time, which stand above these. */
function byGroup(all: LaneInfo[]): [string, LaneInfo[]][] {
  const lanes = all.filter(({ kind }) => kind !== 'time');
  const groups = new Map<string, LaneInfo[]>();
  const split = new Set(lanes.filter((lane) => (/^gpu\d+$/.test(lane.group) ? isFirst(lane) : !lane.minor && lane.group === 'host')).map(({ group }) => group));
  for (const lane of lanes) {
    const group = groupOf(lane, split);
    const list = groups.get(group);
    if (list) list.push(lane);
    else groups.set(group, [lane]);
  }
  const rank = (group: string): number => {
    if (group === 'training') return -1;
    const gpu = /^gpu(\d+)( more)?$/.exec(group);
    if (gpu) return Number(gpu[1]) + (gpu[2] ? 0.5 : 0);
    if (/^host( more)?$/.test(group)) return 1e6 + group.length;
    return group === CORES ? 1e7 : 1e5;
  };
  return [...groups.entries()].sort((a, b) => rank(a[0]) - rank(b[0]));
}

/** All lanes by group, as they stand at first; `closed`: the group begins folded. */
export function lanesByGroup(source: Pick<LaneSource, 'lanes' | 'groupTitles' | 'named'>): { group: string; title: string; closed: boolean; lanes: LaneInfo[] }[] {
  return byGroup(source.lanes).map(([group, lanes]) => ({ group, title: titleOf(group, source.groupTitles), closed: beginsClosed(group), lanes }));
}

function titleOf(group: string, titles: Record<string, string>): string {
  const of = group.endsWith(MORE) ? `${group.slice(0, -MORE.length)} · more` : group;
  return titles[group] ?? PLAIN[group] ?? clean(of, 60);
}

/** What a compared lane needs more, for the name of its run. */
const ORIGIN_HEIGHT = 12;

/**
 * The rows of all sources from top to bottom, with their heights in pixels: pinned lanes, then groups. Compared sources
 * share the groups and stand lane by lane, so that like is below like. `room` above 1 makes lanes higher than they need
 * to be.
 */
export function layOut(sources: LaneSource[], preferences: LanePreferences, compact: boolean, room = 1): Layout {
  const rows: Row[] = [];
  let top = 0;
  const many = sources.length > 1;
  const add = (row: LaneRow | GroupRow): void => {
    rows.push(row);
    top += row.height;
  };
  const addLane = (source: LaneSource, whole: LaneInfo, pinned: boolean, origin: string): void => {
    const key = laneKey(source.id, whole.id);
    const height = laneHeight(whole, compact, room) + ((many || source.front) && whole.kind !== 'stack' ? ORIGIN_HEIGHT : 0);
    add({ type: 'lane', key, source: source.id, lane: withSeries(whole, key, preferences.hidden), whole, top, height, pinned, origin });
  };
  const lookup = new Map<string, { source: LaneSource; lane: LaneInfo }>();
  for (const source of sources) for (const lane of source.lanes) lookup.set(laneKey(source.id, lane.id), { source, lane });
  const pinned = preferences.pinned.filter((key) => lookup.has(key));
  for (const key of pinned) {
    const { source, lane } = lookup.get(key) as { source: LaneSource; lane: LaneInfo };
    addLane(source, lane, true, (many ? `${source.label} · ` : '') + titleOf(lane.group, source.groupTitles));
  }
  const own = new Map(sources.map((source) => [source, new Map(byGroup(source.lanes))]));
  const groups = byGroup(sources.flatMap((source) => source.lanes)).map(([group]) => {
    const members = sources.filter((source) => own.get(source)?.has(group));
    return { group, members };
  });
  const named = new Set(sources.flatMap((source) => [...firstGpus(source)]));
  const rank = ({ group }: { group: string }): number => {
    if (group === 'training') return 0;
    return named.has(group.replace(MORE, '')) ? 1 : 2;
  };
  groups.sort((a, b) => rank(a) - rank(b));
  const folded = new Set<string>();
  for (const { group, members } of groups) {
    const first = members[0];
    if (!first) continue;
    const key = groupKey(first.id, group);
    const lanes = members.flatMap((source) => (own.get(source)?.get(group) ?? []).map((lane) => ({ source, lane })));
    const shown = lanes.filter(({ source, lane }) => {
      const id = laneKey(source.id, lane.id);
      return !pinned.includes(id) && !preferences.hidden.has(id);
    });
    if (shown.length === 0 && lanes.every(({ source, lane }) => pinned.includes(laneKey(source.id, lane.id)))) continue;
    // A GPU's lesser lanes go with its others.
    if (group.endsWith(MORE) && folded.has(group.slice(0, -MORE.length))) continue;
    const collapsed = preferences.collapsed.has(key) !== beginsClosed(group);
    if (collapsed) folded.add(group);
    if (many || group !== 'training') {
      add({ type: 'group', key, title: titleOf(group, many ? {} : first.groupTitles), top, height: GROUP_HEIGHT, collapsed, lanes: shown.length });
      if (collapsed) continue;
    }
    const alike = new Map<string, typeof shown>();
    for (const shownLane of shown) alike.set(shownLane.lane.id, [...(alike.get(shownLane.lane.id) ?? []), shownLane]);
    for (const same of alike.values())
      for (const { source, lane } of same) addLane(source, lane, false, [many && source.label, source.front].filter(Boolean).join(' · '));
  }
  return { rows, height: top };
}

/** `lane` without the series that are hidden. */
function withSeries(lane: LaneInfo, key: string, hidden: ReadonlySet<string>): LaneInfo {
  const series = lane.series.filter(({ name }) => !hidden.has(seriesRowKey(key, name)));
  return series.length === lane.series.length ? lane : { ...lane, series };
}

export function rowAt(layout: Layout, y: number): Row | null {
  for (const row of layout.rows) if (y >= row.top && y < row.top + row.height) return row;
  return null;
}
