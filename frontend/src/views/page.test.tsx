import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { WordedReport } from '../api/types.ts';
import waitingReplies from './replies/waiting.json';
import workersReplies from './replies/workers.json';
import { duration, percent } from '../math/format.ts';
import { lostIn } from '../timeline/frame.ts';
import { pasted } from './fix.tsx';
import { elements, opened, text, texts, type Replies } from './testing.tsx';

const waiting = (): Replies => structuredClone(waitingReplies) as unknown as Replies;
const workers = (): Replies => structuredClone(workersReplies) as unknown as Replies;

/** Replies about one recording, whose report is changed. */
function changed(change: (report: WordedReport) => Partial<WordedReport>): Replies {
  const replies = waiting();
  for (const one of Object.values(replies.recording)) Object.assign(one.report, change(one.report));
  return replies;
}

test('a job opens at its worst worker; whoever looks at another one still reads of it', async () => {
  const app = await opened(workers());
  assert.match(text('verdict-said'), /^Worker 2 holds the others back/);
  assert.match(text('verdict-facts'), /Rank 2: The input pipeline starves the GPU/);
  assert.match(text('chooser-button'), /rank 2/);
  assert.match(text('advice'), /Worker 2 waits 21/);
  assert.doesNotMatch(text('about'), /✓/);
  // The worst rank first; the others in one line, and their clocks in another.
  assert.match(text('ranks'), /^rank 2 13 s lost 7 alike: ranks 0, 1, 3–7, waiting for worker 2 in 3[3-6] % of the time/);
  assert.doesNotMatch(elements('ranks')[0] ?? '', /<details open/);
  assert.match(text('clock'), /of 8 worker clocks aligned/);
  const other = Object.entries(workers().recording).find(([, { report }]) => report.rank === 5);
  assert.ok(other);
  app.choose(other[0]);
  app.state.set({ recordings: new Map([other]) });
  assert.match(text('verdict-said'), /^Worker 2 holds the others back/, "the job's verdict stays");
  assert.match(text('chooser-button'), /rank 5/);
  assert.match(elements('ranks')[0] ?? '', /<details open/);
  await opened(workers(), other[0]);
  assert.match(text('chooser-button'), /rank 5/, 'a rank that was linked stays open');
});

test('one number, one sentence, one bar: the parts are those of the lane, and add up', async () => {
  await opened(waiting());
  const [recording] = Object.values(waiting().recording);
  const [budget] = recording?.budgets ?? [];
  assert.ok(budget);
  const share = (seconds: number): string => percent((100 * seconds) / budget.known_s);
  const busy = budget.parts.find(({ name }) => name === 'busy');
  assert.match(text('busy'), new RegExp(`^${share(busy?.seconds ?? 0)} ?GPU busy, `), "the headline's number is the bar's");
  const shown = texts('budget-part');
  assert.deepEqual(shown, budget.parts.map(({ title, seconds, name }) => `${title} ${name === 'launch' ? '≈ ' : ''}${share(seconds)}`));
  assert.ok(Math.abs(budget.parts.reduce((sum, { seconds }) => sum + seconds, 0) - budget.known_s) < 0.01);
  assert.match(elements('fix-first')[0] ?? '', /--cause: ?var\(--input\)/, 'the fix has the colour of what it mends');
});

test('the panel is closed until it is asked for; a finding without a part of the time is neutral', async () => {
  const app = await opened(changed(({ spans }) => ({ spans: (spans ?? []).map((span) => ({ ...span, part: '' })) })));
  app.openPanel(false);
  assert.deepEqual([elements('details'), elements('selected')], [[], []]);
  app.openPanel(true);
  assert.equal(elements('details').length, 1);
  assert.match(elements('finding')[0] ?? '', /var\(--slate\)/);
});

test('the list of findings has what was lost and what a fix surely saves', async () => {
  const app = await opened(workers());
  const [head = '', first = ''] = [...(elements('finding-list')[0] ?? '').matchAll(/<tr>.*?<\/tr>/g)].map(([row]) => row.replace(/<[^>]*>/g, ' ').replace(/\s+/g, ' '));
  assert.match(head, /finding lost a fix saves/);
  assert.match(first, / s | – /);
  assert.equal(texts('finding').length, app.rows.length);
});

test('the accelerator utilization', async () => {
  await opened(waiting());
  assert.equal(text('au'), 'AU 25 % MLPerf Storage asks for 90 % or 70 %');
  await opened(changed(() => ({ au: null })));
  assert.deepEqual(elements('au'), [], 'it is not known');
});

test('a title does not break before its unit, and its cause has one name', async () => {
  await opened(changed(({ spans }) => ({ spans: (spans ?? []).map((span) => ({ ...span, title: 'The GPU waits for input 75 % of the time' })) })));
  assert.match(elements('selected')[0] ?? '', /<h2>.*75\u00a0% of the time/);
  assert.match(text('selected'), /Input-bound · /);
});

test('a change is shown as a diff, and copied as code', async () => {
  const advice = { before: 'ds = ds.map(decode)', code: 'ds = ds.map(decode, 4)\nds = ds.batch(8)' };
  await opened(changed(({ spans }) => ({ spans: (spans ?? []).map((span) => ({ ...span, advice: { ...span.advice, ...advice } as typeof span.advice })) })));
  const shown = elements('advice')[0] ?? '';
  assert.equal([...shown.matchAll(/<del\b.*?<\/del>/g)].length, 1);
  assert.equal([...shown.matchAll(/<ins\b.*?<\/ins>/g)].length, 2);
  assert.match(text('code'), /^- ds = ds.map\(decode\)\+ ds = ds.map\(decode, 4\)\+ ds = ds.batch\(8\)/);
  assert.equal(pasted('- ds = ds.map(decode)\n+ ds = ds.map(decode, 4)\n+ ds = ds.batch(8)'), advice.code);
});

test('an advice says what it saves, as the verdict does', async () => {
  const { job: _, ...alone } = workers();
  await opened(alone, Object.keys(alone.recording).find((id) => alone.recording[id]?.report.rank === 2));
  const [, gain] = /make this run (.*×) faster/.exec(text('verdict-said')) ?? [];
  assert.ok(gain && text('saving').includes(`Expected speedup ${gain}`), text('verdict-said'));
});

test('one loss is one number: headline, list, lane; where they differ, why is said once', async () => {
  for (const replies of [waiting(), workers()])
    for (const [id, { report, budgets: [budget] }] of Object.entries(replies.recording)) {
      const app = await opened({ ...replies, job: undefined as never }, id);
      const [row] = app.rows;
      if (!row || !budget || report.lead === null) continue;
      assert.ok(text('verdict-said').includes(`${duration(row.lost)} of ${duration(report.wall_s)}`), report.verdict);
      assert.ok(texts('lost').includes(duration(row.lost)));
      const shown = budget.parts.find(({ name }) => name === row.first.part)?.seconds ?? 0;
      assert.equal(Math.abs(shown - (row.lost ?? 0)) < 0.05 * shown, texts('beside').length === 0);
    }
  // Read off the driver's samples, a loss is a little more or less than its spans say; it is said as these do.
  for (const [by, agree] of [[0.97, true], [1.04, true], [1.2, false]] as const) {
    const replies = structuredClone(waiting());
    const [recording] = Object.values(replies.recording);
    const input = recording?.budgets[0]?.parts.find(({ name }) => name === 'input');
    assert.ok(recording && input);
    const lost = lostIn(recording.report, 'input');
    input.seconds = lost * by;
    await opened(replies);
    const [part] = elements('budget-part').filter((one) => one.includes('data-part="input"'));
    assert.ok(part?.includes(`, ${duration(agree ? lost : input.seconds)}"`), part);
    assert.equal(texts('beside').length === 0, agree);
  }
  const app = await opened(changed(({ rows }) => ({ rows: rows.map((row) => ({ ...row, lost_s: 1 })) })));
  for (const { list } of app.rows) for (const item of list) item.lost_s = 1;
  assert.match(text('beside'), /^The lane shows 35 s of it: 34 s lie where no finding counts them\.$/);
});

test('a part of the time that no finding counts is a grey row, with the reason', async () => {
  await opened(changed(() => ({ not_counted: { callbacks: 'Callbacks 6 %, not counted: it begins to count at 20 %.' } })));
  assert.equal(text('near'), 'Callbacks 6 %, not counted: it begins to count at 20 %.');
});

test('the panel goes from the gain to the diff, the command, the reason, the checks, three numbers', async () => {
  const remedies = (command: string) => changed(({ rows }) => ({ script: 'train.py', rows: rows.map((row) => ({ ...row, remedies: Object.fromEntries(Object.entries(row.remedies).map(([fix, one]) => [fix, { ...one, command }])) })) }) as Partial<WordedReport>);
  const replies = remedies('gpu-util try --fix 1 train.py');
  const app = await opened(replies);
  const panel = elements('selected')[0] ?? '';
  const order = ['saving', 'code', 'command', '<p><bdi>', 'checks', 'evidence'].map((part) => panel.indexOf(part === '<p><bdi>' ? part : `class="${part}"`));
  assert.deepEqual(order, [...order].sort((a, b) => a - b), panel);
  assert.ok(order.every((at) => at > 0));
  assert.equal(text('command'), 'gpu-util try --fix 1 train.py');
  assert.match(elements('command')[0] ?? '', /Copy gpu-util try --log-dir \/logs --fix 1 train\.py/);
  assert.equal([...(elements('evidence')[0] ?? '').matchAll(/<tr/g)].length - 1, 3);
  Object.assign(app.rows[0]?.first ?? {}, { tried: { text: '×5.0 [4.5 … 5.7]', code: '', ratio: 5, low: 4.5, high: 5.7, resolved: true, pairs: 4 } });
  assert.equal(text('saving'), 'tried: ×5.0 [4.5 … 5.7]');
});

test('a healthy run has the levers left', async () => {
  (await opened(changed(() => ({ rows: [], lead: null, calm: 'healthy', levers: { 'Mixed precision is off': 'gpu-util try --change x train.py' } })))).openPanel(true);
  assert.match(text('levers'), /Mixed precision is off: .*gpu-util try --change x train\.py/);
});

test('what no cause explains is not called healthy', async () => {
  (await opened(changed(() => ({ rows: [], lead: null, calm: 'unexplained' })))).openPanel(true);
  assert.deepEqual(elements('calm'), []);
  assert.match(text('all'), /No single cause explains the loss\./);
  (await opened(changed(() => ({ rows: [], lead: null, calm: 'healthy' })))).openPanel(true);
  assert.match(text('calm'), /Nothing to fix/);
});

test('messages show code as code, and the remedy after it', async () => {
  const missing = { source: 'nvml', reason: 'no driver <b>here</b>', cure: 'pass `--gpus all` to it' };
  await opened(changed(() => ({ gpus: [], gpu_time_est: {}, unavailable: [missing] })));
  assert.match(text('gpu-none'), /no driver <b>here<\/b>/);
  assert.equal(text('cure'), '→ pass --gpus all to it');
  assert.match(elements('cure')[0] ?? '', /<code>--gpus all<\/code>/);
});

test('the cost of recording explains itself', async () => {
  await opened(changed((report) => ({ overhead: { ...report.overhead, callback_us_per_step: 48, sampler_cpu_pct: 0.3 } })));
  assert.match(text('cost'), /48 µs a step on the training thread, 0\.\d+ % of the run.*overhead_budget/);
  // A window's beginning is no cost of each step.
  await opened(changed((report) => ({ steps: 159, wall_s: 5.05, overhead: { ...report.overhead, callback_us_per_step: 3423, windows_s: 0.917 } })));
  assert.match(text('cost'), /training thread 11 % of the run, beginning and ending profiler windows included · profiler windows 917 ms, 18 % of the run/);
  assert.doesNotMatch(text('cost'), /ms a step/);
});

test('a recording with damaged parts says so over its lanes', async () => {
  const replies = waiting();
  const damaged = { path: 'segment-000001.npz', message: 'segment-000001.npz is damaged' };
  for (const one of Object.values(replies.recording)) one.problems = [damaged, damaged];
  await opened(replies);
  assert.equal(text('trouble'), '⚠ segment-000001.npz is damaged, and 1 other problem. What could be read is shown.');
  const page = elements('page')[0] ?? '';
  assert.ok(page.indexOf('class="trouble"') < page.indexOf('class="content"'));
});

test('a recording that was damaged, or is newer, says so in the list', async () => {
  const replies = workers();
  const [hurt] = replies.runs.recordings;
  assert.ok(hurt);
  replies.runs.problems = [
    { path: `/logs/plugins/${hurt.id.split('/').pop()}`, message: 'cut off: <b>copy</b> again' },
    { path: '/logs/new/x', message: 'format 99: upgrade gpu-util-callback' },
  ];
  const app = await opened(replies);
  app.openList(true);
  const said = texts('choice-verdict');
  assert.equal(said.filter((one) => one.includes('⚠ cut off: <b>copy</b> again')).length, 1);
  assert.ok(said.some((one) => !one.includes('⚠')));
  assert.match(texts('missing').join(' '), /\/new\/.*upgrade gpu-util-callback/);
});

test('what cannot be shown is named', async () => {
  await opened({});
  assert.match(text('state'), /could not be listed.*the disk is on <b>fire<\/b>.*Try again/);
  await opened(waiting(), 'gone/gone');
  assert.match(text('state'), /could not be opened.*the disk is on <b>fire<\/b>/);
});

test('without a recording it says what was looked for and what to add', async () => {
  const { runs } = waiting();
  const empty = { ...runs, recordings: [], tensorboard_runs: [], logdir: '/home/me/no-logs' };
  await opened({ runs: { ...empty, logdir_exists: false } });
  assert.match(text('state'), /callbacks=\[GpuUtilCallback\(.*\/home\/me\/no-logs .*plugins\/gpu_utilization.*there is no such directory.*checks again every 15 seconds/);
  await opened({ runs: empty });
  assert.match(text('state'), /TensorBoard has not found any in this directory/);
});

const NASTY = ['<img src=x onerror="window.pwned=1">', '\u202egnp.exe\u202c right to left', 'nul\u0000byte\u0007bell', 'long'.repeat(2500), '../../etc/passwd?%00#&p.gpu_utilization.id=x'];

/** A reply in which every text is something nasty, but for those that the tab compares. */
function poisoned<T>(reply: T, key = '', counter = { at: 0 }): T {
  if (Array.isArray(reply)) return reply.map((one) => poisoned(one, key, counter)) as T;
  if (reply !== null && typeof reply === 'object') return Object.fromEntries(Object.entries(reply).map(([name, one]) => [name, poisoned(one, name, counter)])) as T;
  const compared = ['id', 'ids', 'kind', 'group', 'status', 'unit', 'revision', 'name', 'version', 'finding', 'first', 'lead', 'fix'];
  return typeof reply === 'string' && !compared.includes(key) ? (NASTY[counter.at++ % NASTY.length] as T) : reply;
}

test('whatever a reply says is shown as text, without control characters, and cut', async () => {
  const shown = new Set<boolean>();
  for (const [at, replies] of [waiting(), workers(), waiting(), workers(), waiting()].entries()) {
    const app = await opened(poisoned(replies, '', { at }));
    for (const list of [false, true]) {
      app.openList(list);
      const [page = ''] = elements('page');
      if (page.includes('&lt;img src=x')) shown.add(list);
      assert.doesNotMatch(page, /<img|\u202e|\u202c|\0|\x07/);
      assert.ok(!page.includes('long'.repeat(500)));
    }
  }
  assert.equal(shown.size, 2, 'markup is shown as text');
});
