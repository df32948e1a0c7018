/** Keeps the state in step with the server: loads once, then polls while a run is live and seen. */
import { fetchJob, fetchRecording, fetchRuns, fetchTotal, isOffline, isTable } from '../api/client.ts';
import type { JobReply, RecordingReply, RecordingSummary } from '../api/types.ts';
import { learn } from '../words/vocabulary.ts';
import type { App } from './app.ts';

const POLL_LIVE_MS = 2000;
const POLL_IDLE_MS = 15000;

const NO_JOB: JobReply = { workers: [], findings: [], rows: [], since: null };

/** TensorBoard collapses the iframe of a hidden tab to no height, while `document.hidden` stays false. */
export const isVisible = (): boolean => innerHeight > 0 && !document.hidden;

/** The newest recording, a live one before others; of a job's workers the first. */
export function defaultRecording(recordings: RecordingSummary[]): RecordingSummary | null {
  const newest = (list: RecordingSummary[]): RecordingSummary | undefined => [...list].sort((a, b) => (b.start_ns ?? 0) - (a.start_ns ?? 0))[0];
  const best = newest(recordings.filter((item) => item.status === 'live')) ?? newest(recordings);
  if (!best) return null;
  const alike = recordings.filter((item) => item.session === best.session && item.session && item.status === best.status);
  return alike.sort((a, b) => (a.rank ?? 0) - (b.rank ?? 0))[0] ?? best;
}

export class Loader {
  private timer: ReturnType<typeof setTimeout> | undefined;
  private busy = false;
  private isQueued = false;
  /** What the sums were last made of, and when; and whether they are being made. */
  private totalState = { of: '', at: -Infinity, now: false };

  constructor(
    private readonly app: App,
    private readonly onGrown: (id: string, before: RecordingReply, after: RecordingReply) => void,
  ) {}

  /** Loads, and again when the tab is shown. */
  start(): void {
    const wake = (): void => {
      if (isVisible()) void this.refresh();
    };
    addEventListener('resize', () => {
      if (this.timer === undefined && !this.busy) wake();
    });
    document.addEventListener('visibilitychange', wake);
    this.app.state.subscribe(() => {
      if (this.app.state.get().list && !this.totalState.of) void this.loadTotal();
    });
    void this.refresh();
  }

  /** Loads what is missing or has changed. Calls during a refresh run one more afterwards. */
  async refresh(): Promise<void> {
    if (this.busy) {
      this.isQueued = true;
      return;
    }
    this.busy = true;
    clearTimeout(this.timer);
    this.timer = undefined;
    try {
      await this.loadAll();
    } finally {
      this.busy = false;
      this.schedule();
    }
  }

  /** Asks for the next refresh: soon while a run is live, or something is missing. */
  private schedule(): void {
    if (this.isQueued) {
      this.isQueued = false;
      void this.refresh();
      return;
    }
    if (isOffline || !isVisible()) return; // `resize` or `visibilitychange` starts us again
    const { runs, runsError, list, total } = this.app.state.get();
    const live = runs?.recordings.some((item) => item.status === 'live') || runs?.complete === false || (list && total?.left);
    this.timer = setTimeout(
      () => {
        this.timer = undefined;
        if (isVisible()) void this.refresh();
      },
      live || runsError ? POLL_LIVE_MS : POLL_IDLE_MS,
    );
  }

  /** Loads the list of runs, then the shown recordings. */
  private async loadAll(): Promise<void> {
    const { state } = this.app;
    try {
      const runs = await fetchRuns();
      learn(runs.words);
      state.set({ runs, runsError: null });
    } catch (error) {
      state.set({ runsError: (error as Error).message });
      return;
    }
    void this.loadTotal();
    if (isTable) return;
    const { runs, id } = state.get();
    const list = runs?.recordings ?? [];
    if (id === null) {
      const first = defaultRecording(list);
      if (!first) return;
      state.set({ id: first.id });
    }
    const now = state.get();
    const shown = [now.id, ...now.compare].filter((recordingId): recordingId is string => recordingId !== null);
    await Promise.all(shown.map((recordingId) => this.loadOne(recordingId, list.find((item) => item.id === recordingId))));
  }

  /** Loads a recording if its summary has changed, and its job. */
  private async loadOne(id: string, summary: RecordingSummary | undefined): Promise<void> {
    const { state } = this.app;
    const before = state.get().recordings.get(id);
    if (before && summary && before.revision === summary.revision && before.report.status === summary.status) {
      if (id === state.get().id && !state.get().job) void this.loadJob(id);
      return;
    }
    try {
      const after = await fetchRecording(id);
      const shown = state.get();
      if (id !== shown.id && !shown.compare.includes(id)) return; // chosen away meanwhile
      if (before) this.onGrown(id, before, after);
      const recordings = new Map(shown.recordings);
      recordings.set(id, after);
      state.set({ recordings, recordingError: id === shown.id ? null : shown.recordingError });
      // Later and by itself: the reports of all workers may take a moment.
      if (id === shown.id) void this.loadJob(id);
    } catch (error) {
      if (id === state.get().id) state.set({ recordingError: (error as Error).message });
    }
  }

  /** Loads the sums of all runs where the table shows them and a run has changed; of live runs not each time. */
  private async loadTotal(): Promise<void> {
    const { state } = this.app;
    const { list, runs, total } = state.get();
    if (!list || !runs || this.totalState.now) return;
    const of = runs.recordings.map(({ id, revision }) => `${id} ${revision}`).join('\n') || '-';
    const now = performance.now();
    if (!total?.left && (of === this.totalState.of || (total && runs.complete !== false && now - this.totalState.at < POLL_IDLE_MS))) return;
    this.totalState = { of, at: now, now: true };
    try {
      state.set({ total: await fetchTotal(), totalError: null });
    } catch (error) {
      this.totalState.of = '-';
      state.set({ totalError: (error as Error).message });
    }
    this.totalState.now = false;
  }

  /** Asks about the job; without an answer the tab shows the recording alone. The worst worker opens by itself. */
  private async loadJob(id: string): Promise<void> {
    const job = await fetchJob(id).catch(() => NO_JOB);
    const { state } = this.app;
    if (state.get().id !== id) return;
    state.set({ job });
    const worst = job.verdict?.id;
    const there = state.get().runs?.recordings.some((summary) => summary.id === worst);
    if (!worst || !there || worst === id || state.get().idSaid) return;
    this.app.choose(worst);
    void this.refresh();
  }
}
