import assert from 'node:assert/strict';
import test from 'node:test';
import { drawBand, drawLine } from './draw.ts';
import { Points } from './resample.ts';

/** Four points, 20 pixels apart, of one series with these least and greatest values. */
function four(min: number[], max: number[]): Points {
  const points = new Points();
  points.reset(4, 1);
  points.n = 4;
  for (let i = 0; i < 4; i++) {
    points.x0[i] = 20 * i;
    points.x1[i] = 20 * i + 5;
    points.time[i] = i;
    for (const [of, values] of [['min', min], ['max', max], ['mean', [1, 1, 1, 1]]] as const) (points[of][0] as Float32Array)[i] = values[i] as number;
  }
  return points;
}

/** Tips of the triangles drawn: the last corner before each fill outside of the clipped part. */
function tips(min: number[], max: number[]): [number, number][] {
  const found: [number, number][] = [];
  let at: [number, number] = [NaN, NaN];
  let clipped = 0;
  const context = new Proxy({} as Record<string, unknown>, {
    get: (_, name) => (...values: number[]) => {
      if (name === 'save') clipped++;
      if (name === 'restore') clipped--;
      if (name === 'lineTo') at = [values[0] as number, values[1] as number];
      if (name === 'fill' && clipped === 0) found.push(at);
    },
    set: () => true,
  });
  drawBand(context as unknown as CanvasRenderingContext2D, four(min, max), 0, { x: 0, y: 10, width: 80, height: 40 }, { colour: 'blue', area: false, top: 10 }, Infinity);
  return found;
}

test('a value beyond the scale of a band is marked at the edge it left by', () => {
  assert.deepEqual(tips([0, 0, 0, 0], [10, 10, 10, 10]), []);
  assert.deepEqual(tips([0, 0, 0, 0], [2, 99, 2, 10]), [[22.5, 5]]);
  assert.deepEqual(tips([0, -3, 0, 0], [2, 2, 2, 2]), [[22.5, 54]]);
});

test("another worker's steps are one line, at the sum of their parts", () => {
  const points = four([0, 0, 0, 0], [9, 9, 9, 9]);
  points.mean = [1, 2].map((value) => new Float32Array(4).fill(value));
  const at: number[] = [];
  const context = new Proxy({} as Record<string, unknown>, { get: (_, name) => (_x: number, y: number) => name === 'lineTo' && at.push(y), set: () => true });
  drawLine(context as unknown as CanvasRenderingContext2D, points, 2, { x: 0, y: 10, width: 80, height: 40 }, { colour: 'blue', top: 10 }, Infinity);
  assert.deepEqual(at.map(Math.round), [38, 38, 38, 38]);
});
