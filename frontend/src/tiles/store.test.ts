import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { TileRequest } from './request.ts';
import { TILE, TileStore } from './store.ts';
import { answer, covers } from './testing.ts';

const settle = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 5));

function store(fail = false): { tiles: TileStore; asked: TileRequest[]; redrawn: () => number; now: { at: number }; mend: () => void; woken: (() => void)[] } {
  const asked: TileRequest[] = [];
  let redrawn = 0;
  let failing = fail;
  const now = { at: 0 };
  const woken: (() => void)[] = [];
  const tiles = new TileStore(
    'id',
    async (request) => {
      asked.push(request);
      await Promise.resolve();
      if (failing) throw new Error('no');
      return answer(request, (_, bucket) => [bucket, bucket, bucket]);
    },
    () => redrawn++,
    () => now.at,
    (act) => void woken.push(act),
  );
  return { tiles, asked, redrawn: () => redrawn, now, woken, mend: () => (failing = false) };
}

test('a view is fetched once, neighbouring tiles together', async () => {
  const { tiles, asked, redrawn } = store();
  const range = { start: 0, end: TILE * 3 };
  tiles.want([{ axis: 'step', level: 0, range, lanes: ['a', 'b'] }]);
  await settle();
  assert.equal(asked.length, 1);
  assert.equal(asked[0]?.count, TILE * 3);
  assert.ok(redrawn() > 0);
  assert.ok(covers(tiles, 'step', 0, range, 'a/a'));
  tiles.want([{ axis: 'step', level: 0, range, lanes: ['a', 'b'] }]);
  await settle();
  assert.equal(asked.length, 1);
});

test('a frame begins one request, and each answer the next one', async () => {
  const { tiles, asked } = store();
  const at = (level: number): { axis: 'step'; level: number; range: { start: number; end: number }; lanes: string[] } => ({ axis: 'step', level, range: { start: 0, end: 10 }, lanes: ['a'] });
  tiles.want([at(0), at(1), at(2)]);
  assert.equal(asked.length, 1);
  await settle();
  assert.deepEqual(asked.map(({ level }) => level), [0, 1, 2]);
});

test('a lane that comes into sight is fetched alone and joins the tile', async () => {
  const { tiles, asked } = store();
  const want = (lanes: string[]): void => tiles.want([{ axis: 'step', level: 0, range: { start: 0, end: 10 }, lanes }]);
  want(['a']);
  await settle();
  want(['a', 'b']);
  await settle();
  assert.deepEqual(asked[1]?.lanes, ['b']);
  assert.ok(covers(tiles, 'step', 0, { start: 0, end: 10 }, 'a/a'));
  assert.ok(covers(tiles, 'step', 0, { start: 0, end: 10 }, 'b/b'));
});

test('while a finer level loads, the coarser one is drawn', async () => {
  const { tiles } = store();
  const range = { start: 0, end: 1000 };
  tiles.want([{ axis: 'step', level: 4, range, lanes: ['a'] }]);
  await settle();
  assert.equal(tiles.best('step', 1, range, 'a/a')[0]?.level, 4);
  tiles.want([{ axis: 'step', level: 1, range, lanes: ['a'] }]);
  await settle();
  assert.equal(tiles.best('step', 1, range, 'a/a')[0]?.level, 1);
});

test('growth fetches the end anew and leaves sealed tiles alone', async () => {
  const { tiles, asked } = store();
  const range = { start: 0, end: TILE * 3 };
  const want = (): void => tiles.want([{ axis: 'step', level: 0, range, lanes: ['a'] }]);
  want();
  await settle();
  tiles.invalidateFrom('step', TILE * 2 + 5);
  assert.ok(covers(tiles, 'step', 0, range, 'a/a'), 'the stale tile is still drawn');
  want();
  await settle();
  assert.equal(asked.length, 2);
  assert.deepEqual([asked[1]?.first, asked[1]?.count], [TILE * 2, TILE]);
});

test('a failed request rests for a while, then is tried again, by itself, too', async () => {
  const { tiles, asked, now, mend, woken } = store(true);
  const want = (): void => tiles.want([{ axis: 'step', level: 0, range: { start: 0, end: 10 }, lanes: ['a'] }]);
  want();
  await settle();
  assert.equal(asked.length, 1);
  assert.equal(tiles.error?.message, 'no');
  want();
  await settle();
  assert.equal(asked.length, 1);
  mend();
  now.at = 6000;
  for (const act of woken.splice(0)) act();
  await settle();
  assert.equal(asked.length, 2);
  assert.equal(tiles.error, null);
});

test('lanes that are being refined are drawn and asked for again, alone, until they are fine', async () => {
  const asked: TileRequest[] = [];
  const now = { at: 0 };
  const woken: { act: () => void; ms: number }[] = [];
  let coarse = 3;
  const tiles = new TileStore(
    'id',
    async (request) => {
      asked.push(request);
      await Promise.resolve();
      const refining = coarse-- > 0 ? request.lanes.filter((lane) => lane === 'b') : [];
      return { ...answer(request, () => [coarse, coarse, coarse]), refining };
    },
    () => undefined,
    () => now.at,
    (act, ms) => void woken.push({ act, ms }),
  );
  const range = { start: 0, end: 10 };
  tiles.want([{ axis: 'step', level: 0, range, lanes: ['a', 'b'] }]);
  await settle();
  assert.equal(asked.length, 1, 'not asked again at once');
  assert.ok(covers(tiles, 'step', 0, range, 'b/b'), 'what came is drawn');
  assert.ok(tiles.refining && tiles.pending);
  const waits: number[] = [];
  while (tiles.refining && waits.length < 9) {
    const { act, ms } = woken.pop() as { act: () => void; ms: number };
    waits.push(ms);
    now.at += ms;
    act();
    await settle();
  }
  assert.deepEqual(asked.map(({ lanes }) => lanes.join()), ['a,b', 'b', 'b', 'b']);
  assert.ok((waits[1] as number) > (waits[0] as number), 'more patiently each time');
  assert.ok(!tiles.pending);
  assert.equal(tiles.get('step', 0, range)[0]?.series.get('b/b')?.mean[0], -1);
});

test('tiles that were refined at different times are all asked for until they are fine', async () => {
  const now = { at: 0 };
  const woken: { act: () => void; at: number }[] = [];
  const left = new Map<number, number>();
  const tiles = new TileStore(
    'id',
    async (request) => {
      await Promise.resolve();
      const tile = request.first / TILE;
      let coarse = false;
      for (let t = tile; t < tile + request.count / TILE; t++) {
        const more = left.get(t) ?? 4;
        left.set(t, more - 1);
        coarse ||= more > 0;
      }
      return { ...answer(request, () => [1, 1, 1]), refining: coarse ? request.lanes : [] };
    },
    () => undefined,
    () => now.at,
    (act, ms) => void woken.push({ act, at: now.at + ms }),
  );
  const view = (from: number, to: number): void => tiles.want([{ axis: 'step', level: 0, range: { start: from * TILE, end: to * TILE }, lanes: ['a'] }]);
  view(0, 2);
  await settle();
  now.at = 60;
  view(0, 4); // two more come into sight while the first two wait
  await settle();
  for (let round = 0; round < 40 && woken.length > 0; round++) {
    woken.sort((a, b) => a.at - b.at);
    const { act, at } = woken.shift() as { act: () => void; at: number };
    now.at = Math.max(now.at, at);
    act();
    await settle();
  }
  assert.ok(!tiles.refining);
  assert.ok(covers(tiles, 'step', 0, { start: 0, end: 4 * TILE }, 'a/a'));
});
