/** Runs side by side, the chosen one first: how fast, where the time went, what was found. */
import type { RecordingReply, WordedReport } from '../api/types.ts';
import { duration, percent, seconds, short, UNKNOWN } from '../math/format.ts';
import { gpuActive, hostCategories, slices } from '../words/accounts.ts';
import { causeStyle } from '../words/causes.ts';
import { sourceLabel } from '../words/labels.ts';
import { useApp, useTab } from './hooks.ts';
import { Small } from './small.tsx';

/** Seconds of wall time per step, per sample where both runs know their batch; compilation left out. */
function pace(report: WordedReport, bySample: boolean): number | null {
  const { wall_s: wall, steps, time_s: time, batch_size: size } = report;
  if (!wall || !steps) return null;
  const compile = typeof time?.compile === 'number' ? time.compile : 0;
  return (wall - compile) / steps / (bySample ? (size ?? 1) : 1);
}

function speed(base: WordedReport, report: WordedReport): string {
  const bySample = !!base.batch_size && !!report.batch_size;
  const [old, now] = [pace(base, bySample), pace(report, bySample)];
  return old && now ? `${short(Number((old / now).toFixed(2)))}×` : UNKNOWN;
}

function activeOf(report: WordedReport): number | null {
  const means = report.gpus.filter((gpu) => gpu.used_by_framework !== false).map((gpu) => gpu.utilization_pct?.mean);
  const knownMeans = means.filter((mean): mean is number => typeof mean === 'number');
  return knownMeans.length > 0 ? knownMeans.reduce((sum, mean) => sum + mean, 0) / knownMeans.length : null;
}

const causesOf = ({ spans, findings }: WordedReport): string[] => [...new Set([...spans, ...findings].map(({ cause }) => cause))];

const called = (cause: string): string => `${causeStyle(cause).glyph} ${causeStyle(cause).title} `;

/** The open run and those it is compared with, a row each; nothing where none is. */
export function Compare() {
  const { app, refresh } = useTab();
  const recordings = useApp((state) => state.recordings);
  const id = useApp((state) => state.id);
  const compare = useApp((state) => state.compare);
  const shown = [id, ...compare].map((recordingId) => (recordingId === null ? undefined : recordings.get(recordingId))).filter((one): one is RecordingReply => one !== undefined);
  const base = shown[0];
  if (!base || compare.length === 0) return null;
  const longest = Math.max(...shown.map(({ report }) => report.wall_s ?? 0), 1e-9);
  const swap = (to: string): void => {
    app.choose(to);
    refresh();
  };
  return (
    <section class="compare" aria-label="Comparison">
      <table>
        <thead>
          <tr>
            <th scope="col">run</th>
            <th scope="col" title="How many times as fast as the first: wall time a step (a sample, where batch sizes are known), without compilation">
              speed
            </th>
            <th scope="col" title="Average wall time of a step without compilation: what the speed rests on">
              a step
            </th>
            <th scope="col" title={`Average share of time in which ${gpuActive().explanation}`}>
              GPU
            </th>
            <th scope="col">where the thread's time went</th>
            <th scope="col">in all</th>
            <th scope="col">found</th>
            <th scope="col">
              <span class="hidden-text">remove</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {shown.map((recording) => {
            const { report } = recording;
            const causes = causesOf(report);
            const gone = causesOf(base.report).filter((cause) => !causes.includes(cause));
            return (
              <tr key={recording.id}>
                <th scope="row">
                  {recording === base ? (
                    <bdi>{sourceLabel(recording)}</bdi>
                  ) : (
                    <button type="button" class="linklike" title="Make it the first" onClick={() => swap(recording.id)}>
                      <bdi>{sourceLabel(recording)}</bdi>
                    </button>
                  )}
                </th>
                <td>
                  <b>{recording === base ? '1×' : speed(base.report, report)}</b>
                </td>
                <td>
                  {seconds(pace(report, false))}
                  {report.batch_size && <span class="dim"> · {seconds(pace(report, true))} a sample</span>}
                </td>
                <td>{percent(activeOf(report))}</td>
                <td class="compare-bar">
                  <span class="contrast-bar" aria-hidden="true">
                    {slices(report.time_s, hostCategories()).map((part) => (
                      <i key={part.key} class={part.idle ? 'idle' : ''} style={{ width: `${(100 * part.seconds) / longest}%`, background: `var(--${part.colour})` }} title={`${part.title}: ${duration(part.seconds)}`} />
                    ))}
                  </span>
                </td>
                <td>{duration(report.wall_s)}</td>
                <td class="words">
                  {causes.length === 0 ? 'nothing ' : causes.slice(0, 4).map(called).join('')}
                  {gone.length > 0 && `· without ${gone.map(called).join('')}`}
                </td>
                <td>
                  {recording !== base && (
                    <Small sign="✕" name={`Stop comparing with ${sourceLabel(recording)}`} onClick={() => app.compareWith(recording.id, false)} />
                  )}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}
