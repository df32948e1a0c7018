/** Findings as people act on them, in the rows that the server makes of them. Pure. */
import type { FindingRow, JobReply, WordedFinding, WordedReport } from '../api/types.ts';
import { type Bounds, count, ordinal } from '../math/format.ts';
import { clean } from '../math/text.ts';

/** A row: one cause, which the verdict gives one number; one finding, or several at different times. */
export interface Group {
  /** The costliest of them. */
  first: WordedFinding;
  /** In the order of the axis. */
  list: WordedFinding[];
  /** Seconds in all; null where none is known. */
  lost: number | null;
  remedies: FindingRow['remedies'];
}

/** Spans and whole-run findings of a report. */
const allFindings = ({ spans, findings }: Pick<WordedReport, 'spans' | 'findings'>): WordedFinding[] => [...spans, ...findings];

/** The server's rows of findings, in its order: that of the verdict. */
function grouped(rows: readonly FindingRow[], findings: readonly WordedFinding[]): Group[] {
  const byId = new Map(findings.map((finding) => [finding.id, finding]));
  return rows.flatMap((row) => {
    const [first, list] = [byId.get(row.first), row.ids.flatMap((id) => byId.get(id) ?? [])];
    return first ? [{ first, list, lost: row.lost_s, remedies: row.remedies }] : [];
  });
}

/** What mends the finding `item` of a row: the remedy of the costliest that promises it, and what it saves of them all. */
export function remedyOf({ list, remedies }: Group, item: WordedFinding): { item: WordedFinding; range: Bounds | null; command: string } {
  const remedy = remedies[item.fix ?? ''];
  return { item: list.find(({ id }) => id === remedy?.id) ?? item, range: remedy?.saves_range_s ?? null, command: remedy?.command ?? '' };
}

/** What the tab lists, a row each: what concerns all workers of a job, then what this recording found. */
export function rowsOf(report: Pick<WordedReport, 'spans' | 'findings' | 'rows'>, job: JobReply | null): Group[] {
  return [...(job && job.workers.length > 1 ? jobFindings(job) : []), ...grouped(report.rows, allFindings(report))];
}

/** Where a finding stands among the rows: "finding 1 of 8", of several spans also "3rd of 4 spans"; "" where it is not among them. */
export function positionText(rows: readonly Group[], id: string): string {
  const row = rows.findIndex(({ list }) => list.some((finding) => finding.id === id));
  const { list } = rows[row] ?? { list: [] };
  if (row < 0) return '';
  const span = list.findIndex((finding) => finding.id === id);
  return `finding ${row + 1} of ${rows.length}${list.length > 1 ? ` · ${ordinal(span + 1)} of ${list.length} spans` : ''}`;
}

export const jobFindings = (job: Pick<JobReply, 'findings' | 'rows'>): Group[] => grouped(job.rows, job.findings);

type Judged = Pick<WordedReport, 'spans' | 'findings' | 'rows' | 'lead'>;

const groupOfReport = new WeakMap<Judged, Group | null>();

/** The row that the verdict speaks of; null where it says that nothing held training back. */
export function headlineOf(report: Judged): Group | null {
  let worst = groupOfReport.get(report);
  if (worst === undefined) groupOfReport.set(report, (worst = rowsOf(report, null).find(({ first }) => first.id === report.lead) ?? null));
  return worst;
}

/** What the page is about, and the findings to fix first: the job's where several workers train together. */
export function headline(report: WordedReport, job: JobReply | null): { text: string; fix: Group | null } {
  const own = { text: clean(report.verdict, 400) || fallback(report), fix: headlineOf(report) };
  const workers = report.world_size ?? 1;
  if (workers > 1 && !job) return { text: `Comparing the ${count(workers)} workers…`, fix: null };
  const { verdict } = job ?? {};
  if (!verdict) return own;
  const across = (job ? jobFindings(job) : []).find(({ first }) => first.id === verdict.finding);
  return { text: clean(verdict.text, 400), fix: across ?? (verdict.rank === report.rank ? own.fix : null) };
}

function fallback(report: WordedReport): string {
  if (!report.steps) return report.status === 'live' ? 'Training has begun; no step is done yet.' : 'No step was recorded.';
  return 'Nothing stands out in this run.';
}

/** A verdict's first clause, what parts them, and what follows it: "The input pipeline starves the GPU", ": ", "25 s of 88 s. Fixing it …". */
export function clauses(verdict: string): [string, string, string] {
  const [, lead = verdict, sign = '', rest = ''] = /^(.{8,120}?)([:.;])\s(.*)$/s.exec(verdict) ?? [];
  return [lead, sign, rest];
}

/** Groups of lanes ("gpu37") of the GPUs that findings are about, where they are not about all of them. */
export function namedGpus(report: Pick<WordedReport, 'spans' | 'findings' | 'gpus'>): Set<string> {
  const all = report.gpus.length;
  const named = allFindings(report).flatMap(({ gpus }) => (gpus && gpus.length < all ? gpus : []));
  return new Set(named.map((gpu) => `gpu${String(gpu).replace(/^gpu/, '')}`));
}
