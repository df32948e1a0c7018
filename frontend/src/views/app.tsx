/** The whole tab: one of its states, or the recording. */
import { useEffect, useState } from 'preact/hooks';
import { isTable } from '../api/client.ts';
import type { RecordingReply } from '../api/types.ts';
import { plural } from '../math/format.ts';
import { isOfRows } from '../timeline/frame.ts';
import { clean } from '../math/text.ts';
import { Compare } from './compare.tsx';
import { Details } from './details.tsx';
import { Footer } from './footer.tsx';
import { Help } from './help.tsx';
import { useApp } from './hooks.ts';
import { Kernels } from './kernels.tsx';
import { TimelineView } from './plot.tsx';
import { Prose } from './prose.tsx';
import { Runs } from './runs.tsx';
import { Broken, Empty, Loading } from './states.tsx';
import { Tables } from './tables.tsx';
import { TopBar } from './topbar.tsx';
import { Budget, FixFirst, Verdict } from './verdict.tsx';
import { Finder } from './finder.tsx';

/** All of the tab: the page, and what opens over it. */
export function Root() {
  return (
    <>
      <Body />
      <Help />
      <Finder />
      <Notice />
    </>
  );
}

/** The page for the state: nothing recorded, the table of runs, one run, or why there is none to show. */
function Body() {
  const id = useApp((state) => state.id);
  const runs = useApp((state) => state.runs);
  const list = useApp((state) => state.list);
  const runsError = useApp((state) => state.runsError);
  const error = useApp((state) => state.recordingError);
  const tilesError = useApp((state) => state.tilesError);
  const recording = useApp((state) => (state.id === null ? null : (state.recordings.get(state.id) ?? null)));
  if (!runs && runsError) return <Broken what="The recordings could not be listed" message={runsError} />;
  if (!runs) return <Late />;
  if (runs.recordings.length === 0 && !recording) return <Empty runs={runs} />;
  const trouble = runsError ?? error ?? tilesError;
  if ((list || isTable) && runs.recordings.length > 0)
    return (
      <div class="page listing">
        <TopBar recording={null} />
        {runsError && <Trouble message={runsError} />}
        <Runs runs={runs} />
      </div>
    );
  if (!recording)
    return (
      <>
        <TopBar recording={null} />
        {error ? <Broken what="This recording could not be opened" message={error} /> : <Late key={id} />}
      </>
    );
  return (
    <div class="page">
      <TopBar recording={recording} />
      {trouble && <Trouble message={trouble} />}
      <Damaged problems={recording.problems} />
      <main class="content">
        <Verdict recording={recording} />
        <FixFirst recording={recording} />
        <Budget recording={recording} />
        <Compare />
        <div class="columns">
          <div class="middle">
            <TimelineView />
            <Kernels recording={recording} />
            <Tables recording={recording} />
          </div>
          <Details recording={recording} />
        </div>
      </main>
      <Footer report={recording.report} version={runs.server_version ?? ''} />
    </div>
  );
}

/** Why the newest answer is missing, over what was read before. */
function Trouble({ message }: { message: string }) {
  return (
    <p class="trouble" role="alert">
      <span aria-hidden="true">⚠ </span>
      {message} What was read before is still shown.
    </p>
  );
}

/** That parts of the recording are missing is said over what is shown of it. */
function Damaged({ problems }: { problems: RecordingReply['problems'] }) {
  const [first, ...others] = [...problems].sort((a, b) => Number(isOfRows(b)) - Number(isOfRows(a)));
  if (!first) return null;
  return (
    <p class="trouble" role="alert" title={clean(first.path, 500)}>
      <span aria-hidden="true">⚠ </span>
      <bdi>
        <Prose text={first.message} />
      </bdi>
      {others.length > 0 && `, and ${plural(others.length, 'other problem')}`}. What could be read is shown.
    </p>
  );
}

/** Nothing for a third of a second, then a word: a fast answer must not flash. */
function Late() {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 350);
    return () => clearTimeout(timer);
  }, []);
  return late ? <Loading /> : null;
}

/** A message that goes by itself, such as "Link copied"; read out, too. */
function Notice() {
  const notice = useApp((state) => state.notice);
  return (
    <div class="notice" role="status" aria-live="polite">
      {notice && <span>{notice}</span>}
    </div>
  );
}
