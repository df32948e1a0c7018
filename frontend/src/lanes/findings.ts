/** Findings as people act on them: those with one cause and one remedy are one thing to do. Pure. */
import type { WordedFinding, JobReply, WordedReport } from '../api/types.ts';
import { type Bounds, ordinal } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { causeStyle } from '../words/causes.ts';
import { findingId } from './spans.ts';

export interface Listed {
  item: WordedFinding;
  id: string;
}

/** A row: one cause, which the verdict gives one number; one finding, or several at different times. */
export interface Group {
  /** The costliest of them. */
  first: Listed;
  /** In the order of the axis. */
  list: Listed[];
  /** Seconds in all; null where none is known. */
  lost: number | null;
  saves: number | null;
  /** The least and the most that the remedy saves; of a question, if the answer is yes. */
  range: Bounds | null;
}

const sum = (list: Listed[], of: 'lost_s' | 'saves_s'): number | null => {
  const known = list.map(({ item }) => item[of]).filter((value): value is number => typeof value === 'number');
  return known.length > 0 ? known.reduce((all, one) => all + one, 0) : null;
};

const costliest = (list: Listed[]): Listed => list.reduce((most, one) => ((one.item.lost_s ?? -1) > (most.item.lost_s ?? -1) ? one : most));

/** What the remedies save together: fixes alone count, if there are any, else questions if the answer is yes; without an upper end where one of them has none. */
function rangeOf(list: Listed[]): Bounds | null {
  const fixes = list.filter(({ item }) => item.saves_s);
  const ranges = (fixes.length > 0 ? fixes : list).map(({ item }) => item.saves_range_s).filter((range) => !!range);
  const add = (a: number | null, b: number | null): number | null => (a === null || b === null ? null : a + b);
  return ranges.length > 0 ? ranges.reduce((all, range) => [add(all[0], range[0]), add(all[1], range[1])]) : null;
}

/** The server's order: what blocks first, then by what a fix is predicted to save, and a question at least if the answer is yes; unknown costs and unnamed time last. */
function order({ first, lost, saves, range }: Group): number[] {
  const asks = !saves && range !== null;
  const least = range?.[0] ?? saves ?? 0;
  return [
    Number(!causeStyle(first.item.cause).blocking), Number(first.item.id?.split('@')[0]?.endsWith(':unmarked') ?? false), Number(lost === null),
    -(asks ? least : saves ?? 0), Number(!saves), -least, asks ? -(range[1] ?? lost ?? 0) : 0, -(lost ?? 0),
  ];
}

function compare(a: number[], b: number[]): number {
  const at = a.findIndex((value, i) => value !== b[i]);
  return at < 0 ? 0 : (a[at] ?? 0) - (b[at] ?? 0);
}

const listed = (findings: readonly WordedFinding[] | null | undefined): Listed[] => (findings ?? []).map((item, i) => ({ item, id: findingId(item, i) }));

/** Spans and whole-run findings of a report; ids count within each kind. */
export const allFindings = (report: Pick<WordedReport, 'spans' | 'findings'>): Listed[] => [...listed(report.spans), ...listed(report.findings)];

/** Groups of `list` in the order of the verdict; `lead`: ids of those that it sums up, which are one of them. */
export function grouped(list: readonly Listed[], lead: readonly string[] = []): Group[] {
  const groups = new Map<string, Listed[]>();
  for (const one of list) {
    const { cause, title, gpus, ranks } = one.item;
    const key = lead.includes(one.id) ? 'lead' : JSON.stringify([cause, title?.replace(/\d[\d.,]*/g, '#'), gpus, ranks]);
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  return [...groups.values()]
    .map((members) => ({
      first: costliest(members),
      list: [...members].sort((a, b) => (a.item.start_step ?? 0) - (b.item.start_step ?? 0)),
      lost: sum(members, 'lost_s'),
      saves: sum(members, 'saves_s'),
      range: rangeOf(members),
    }))
    .sort((a, b) => compare(order(a), order(b)));
}

/** What mends the finding `item` of a row: the remedy of the costliest that promises it, and what it saves of them all. */
export function remedyOf({ list }: Group, item: WordedFinding): { item: WordedFinding; range: Bounds | null } {
  // The server's key of the remedy: numbers in its text and code vary from one span to the next.
  const keyOf = ({ fix, advice }: WordedFinding): string => fix ?? JSON.stringify([advice?.text, advice?.code]);
  const mended = list.filter((one) => keyOf(one.item) === keyOf(item));
  const fixes = mended.filter((one) => one.item.saves_s);
  return { item: costliest(fixes.length > 0 ? fixes : mended).item, range: rangeOf(mended) };
}

/** What the tab lists, a row each: what concerns all workers of a job, then what this recording found. */
export function rowsOf(report: Pick<WordedReport, 'spans' | 'findings' | 'headline'>, job: JobReply | null): Group[] {
  return [...(job && job.workers.length > 1 ? jobFindings(job.findings) : []), ...grouped(allFindings(report), report.headline?.ids)];
}

/** Where a finding stands among the rows: "finding 1 of 8", of several spans also "3rd of 4 spans"; "" where it is not among them. */
export function positionText(rows: readonly Group[], id: string): string {
  const row = rows.findIndex(({ list }) => list.some((one) => one.id === id));
  const { list } = rows[row] ?? { list: [] };
  if (row < 0) return '';
  const span = list.findIndex((one) => one.id === id);
  return `finding ${row + 1} of ${rows.length}${list.length > 1 ? ` · ${ordinal(span + 1)} of ${list.length} spans` : ''}`;
}

export const jobFindings = (findings: readonly WordedFinding[]): Group[] => grouped(listed(findings));

type Judged = Pick<WordedReport, 'spans' | 'findings' | 'verdict' | 'headline'>;

const known = new WeakMap<Judged, Group | null>();

/** The group that the verdict speaks of; null where it says that nothing held training back. */
export function headlineOf(report: Judged): Group | null {
  let found = known.get(report);
  if (found === undefined) known.set(report, (found = findHeadline(report)));
  return found;
}

function findHeadline(report: Judged): Group | null {
  const verdict = clean(report.verdict, 400);
  const groups = grouped(allFindings(report), report.headline?.ids);
  const called = groups.find(({ first }) => first.item.title && verdict.startsWith(clean(first.item.title)));
  if (called) return called;
  return groups.find(({ list }) => list.some(({ id }) => report.headline?.ids.includes(id))) ?? null;
}

/** Groups of lanes ("gpu37") of the GPUs that findings are about, where they are not about all of them. */
export function namedGpus(report: Pick<WordedReport, 'spans' | 'findings' | 'gpus'>): Set<string> {
  const all = report.gpus?.length ?? 0;
  const named = allFindings(report).flatMap(({ item }) => (item.gpus && item.gpus.length < all ? item.gpus : []));
  return new Set(named.map((gpu) => `gpu${String(gpu).replace(/^gpu/, '')}`));
}
