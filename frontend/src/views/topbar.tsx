/** The bar on top: which recording, how it stands, which axis, and what to do with the view. */
import { useRef, useState } from 'preact/hooks';
import { exportUrl, isOffline } from '../api/client.ts';
import type { RecordingReply, WordedReport } from '../api/types.ts';
import { shift } from '../math/range.ts';
import { clean, held, inShell } from '../math/text.ts';
import type { AxisChoice } from '../state/hash.ts';
import { addressWindow } from '../state/hash.ts';
import { convertRange, type Frame } from '../timeline/frame.ts';
import { copyPicture } from '../timeline/poster.ts';
import { factsLine, statusOf } from '../words/labels.ts';
import { Chooser } from './chooser.tsx';
import { Command, copyText } from './fix.tsx';
import { useApp, useDismiss, useTab } from './hooks.ts';

const AXES: { key: AxisChoice; title: string; hint: string }[] = [
  { key: 'time', title: 'time', hint: 'Time since the recording began' },
  { key: 'steps', title: 'steps', hint: 'Steps of this fit, from 0; what is lost between steps has no width here' },
  { key: 'clock', title: 'clock', hint: 'Time of day' },
];

/** The first line: the run, its status and facts, the axis, and actions. */
export function TopBar({ recording }: { recording: RecordingReply | null }) {
  const { app } = useTab();
  const help = useApp((state) => state.help);
  return (
    <header class="topbar">
      <strong class="brand">GPU Utilization</strong>
      <Chooser />
      {recording && <Status recording={recording} />}
      <Follow />
      {recording?.report.status === 'live' && !isOffline && <Look run={recording.report.run} />}
      {recording && <Facts report={recording.report} />}
      <span class="spacer" />
      {recording && <AxisSwitch />}
      {recording && <Actions recording={recording} />}
      <button type="button" class="pill round" aria-pressed={help} title="Keys and gestures  ?" onClick={() => app.state.set({ help: !help })}>
        <span aria-hidden="true">?</span>
        <span class="hidden-text">Help</span>
      </button>
    </header>
  );
}

/** What was trained, in one line. */
function Facts({ report }: { report: WordedReport }) {
  const text = held(factsLine(report).join(' · '));
  return (
    <span class="facts clip" title={text}>
      {text}
    </span>
  );
}

/** Whether the run is live, ended, interrupted or lost. */
function Status({ recording }: { recording: RecordingReply }) {
  const { status, job_source } = recording.report;
  const { title, hint } = statusOf(status, job_source);
  return (
    <span class={`status status-${clean(status, 20)}`} title={hint} role="status">
      <i aria-hidden="true" />
      {title}
    </span>
  );
}

/** Of a live run that is zoomed into: keeps its newest steps in view. */
function Follow() {
  const { app } = useTab();
  const live = useApp((state) => state.view !== null && state.recordings.get(state.id ?? '')?.report.status === 'live');
  const follow = useApp((state) => state.follow);
  if (!live) return null;
  return (
    <button type="button" class="pill follow" aria-pressed={follow} title="Keep the newest steps in view  e" onClick={() => app.followEnd(!follow)}>
      follow
    </button>
  );
}

/** Of a live run: copies the command that has the profiler take its next steps. */
function Look({ run }: { run: string }) {
  const logdir = useApp((state) => state.runs?.logdir);
  return (
    <Command text={`gpu-util look ${[logdir || 'LOGDIR', '--run', run].map(inShell).join(' ')}`} kind="pill">
      look now
    </Command>
  );
}

/** The switch between steps, time since the start, and the clock. */
function AxisSwitch() {
  const { timeline } = useTab();
  const axis = useApp((state) => state.axis);
  return (
    <div class="segmented" role="group" aria-label="Axis">
      {AXES.map(({ key, title, hint }) => (
        <button key={key} type="button" aria-pressed={axis === key} title={hint} onClick={() => timeline.setAxis(key)}>
          {title}
        </button>
      ))}
    </div>
  );
}

/** Sharing the view as a link, and saving it as a picture, a table or a page. */
function Actions({ recording }: { recording: RecordingReply }) {
  const { app, timeline } = useTab();
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useDismiss(open, () => setOpen(false), box);
  const share = async (): Promise<void> => {
    const link = addressWindow().location.href;
    app.notice((await copyText(link)) ? 'Link to this view copied' : 'Copy the link from the address bar: it holds this view');
  };
  const ids = [recording.id, ...useApp((state) => state.compare)];
  const steps = (): ([number, number] | null)[] => {
    const { frame } = timeline;
    return (frame?.sources ?? []).map((source) => {
      const { axis, level, view } = frame as Frame;
      const range = axis === 'step' ? view : convertRange(source, axis, level, shift(view, -source.shift));
      return range && [Math.max(0, Math.floor(range.start)), Math.ceil(range.end) - 1];
    });
  };
  const save = (what: () => void | Promise<void>) => () => {
    setOpen(false);
    void what();
  };
  return (
    <>
      {!isOffline && (
        <button type="button" class="pill" onClick={() => void share()} title="Copies a link to exactly this view">
          <span>
            Share<span class="wide"> view</span>
          </span>
        </button>
      )}
      <div class="menu" ref={box}>
        <button type="button" class="pill" aria-haspopup="true" aria-expanded={open} onClick={() => setOpen(!open)}>
          Export <span aria-hidden="true">▾</span>
        </button>
        {open && (
          <div class="popover end" role="group" aria-label="Export">
            <button type="button" onClick={save(() => copyPicture(timeline))}>
              Copy picture <small>number, bar, lane</small>
            </button>
            {!isOffline && (
              <a href={exportUrl('csv', ids, steps())} download onClick={() => setOpen(false)}>
                Steps of this view <small>CSV</small>
              </a>
            )}
            {!isOffline && (
              <a href={exportUrl('html', ids)} download onClick={() => setOpen(false)}>
                This tab as one file <small>HTML</small>
              </a>
            )}
          </div>
        )}
      </div>
    </>
  );
}
