// A stand-in for TensorBoard and the plugin's server, for work on the looks: `npm run mock [port]`.
// Invented data (dev/data.mjs); not shipped, not used by any test of the product.
// Scenarios by path: /acts/ /nogpu/ /many/ /live/ /hostile/ /empty/ /broken/
import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { hostile, threeActs } from './data.mjs';

const STATIC = join(dirname(fileURLToPath(import.meta.url)), '..', '..', 'tensorboard_plugin', 'static');
const acts = threeActs();
const other = threeActs({ id: 'resnet50-b128/x', run: 'resnet50-b128', seed: 3, steps: 4000, gpus: 1, status: 'interrupted', start: 1.7637e18 });
const scenarios = {
  acts: [acts, other],
  nogpu: [threeActs({ gpus: 0, id: 'laptop/x', run: 'laptop' })],
  many: [threeActs({ gpus: 8, id: 'dgx/x', run: 'dgx' })],
  live: [threeActs({ status: 'live', id: 'live/x', run: 'live', start: Date.now() * 1e6 - 5e11 })],
  hostile: [hostile(threeActs({ id: 'h/x' }))],
  empty: [],
  broken: [],
};
const began = Date.now();

/** How much of a live run has happened by now, 0.5 to 1 over two minutes. */
const progress = (scene) => (scene.summary.status === 'live' ? Math.min(1, 0.5 + (Date.now() - began) / 240000) : 1);

function tiles(scene, query) {
  const axis = query.get('axis');
  const size = 2 ** Number(query.get('level'));
  const [first, count] = [Number(query.get('first')), Number(query.get('count'))];
  const lanes = query.get('lanes').split(',').filter((id) => scene.lanes[id]);
  const done = progress(scene);
  const { starts } = scene;
  const steps = Math.floor(starts.length * done);
  const until = starts[steps] ?? scene.end;
  const stepOf = (t) => {
    let [low, high] = [0, steps];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= t) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  };
  const header = { axis, level: Math.log2(size), first, count, revision: 1, series: [] };
  const arrays = [];
  for (const id of lanes) {
    const { kind, times, series } = scene.lanes[id];
    for (const [name, values] of Object.entries(series)) {
      header.series.push({ lane: id, name });
      const [min, max, mean, n] = [new Float32Array(count).fill(Infinity), new Float32Array(count).fill(-Infinity), new Float32Array(count), new Float32Array(count)];
      values.forEach((value, i) => {
        const time = kind === 'step' ? starts[i] : times[i];
        if (time > until || (kind === 'step' && i >= steps)) return;
        const at = axis === 'time' ? time : kind === 'step' ? i : stepOf(time);
        const k = Math.floor(at / size) - first;
        if (k < 0 || k >= count || at < 0) return;
        min[k] = Math.min(min[k], value);
        max[k] = Math.max(max[k], value);
        mean[k] += value;
        n[k]++;
      });
      for (let k = 0; k < count; k++) if (n[k]) mean[k] /= n[k]; else min[k] = max[k] = mean[k] = NaN;
      arrays.push(min, max, mean);
    }
  }
  const [timeAt, stepAt] = [new Float64Array(count), new Float64Array(count)];
  for (let k = 0; k < count; k++) {
    const at = (first + k) * size;
    timeAt[k] = axis === 'time' ? at : (starts[at] ?? NaN);
    stepAt[k] = axis === 'step' ? at : Math.max(0, stepOf(at));
  }
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(json.length);
  const pad = Buffer.alloc((8 - ((4 + json.length) % 8)) % 8);
  const values = Buffer.concat(arrays.map((a) => Buffer.from(a.buffer)));
  const planes = [0, 1, 2, 3].map((plane) => values.filter((_, i) => i % 4 === plane));
  return Buffer.concat([length, json, pad, ...planes, Buffer.from(timeAt.buffer), Buffer.from(stepAt.buffer)]);
}

const page = (name) => `<!doctype html><title>mock TensorBoard</title><body style="margin:0;background:#fff">
<div style="height:64px;background:#f57c00;color:#fff;font:500 18px sans-serif;display:flex;align-items:center;padding:0 20px;gap:20px">MOCK TensorBoard — invented data
<button onclick="document.body.classList.toggle('dark-mode')">dark</button></div>
<iframe src="data/plugin_entry.html" style="border:0;width:100%;height:calc(100vh - 64px);display:block" title="${name}"></iframe>
<script>if (location.search.includes('dark')) document.body.classList.add('dark-mode')</script>`;
const entry = `<!doctype html><head><base href="plugin/gpu_utilization/"></head><body><script type="module">import('./static/index.js?v=1').then((m) => void m.render())</script></body>`;

const server = createServer(async (request, response) => {
  const url = new URL(request.url, 'http://mock');
  const [, name, ...rest] = url.pathname.split('/');
  const route = rest.join('/');
  const scene = scenarios[name];
  const send = (body, type, status = 200) => {
    response.writeHead(status, { 'content-type': type, 'content-encoding': 'gzip', 'cache-control': 'no-cache' });
    response.end(gzipSync(body, { level: 1 }));
  };
  const json = (value, status) => send(JSON.stringify(value), 'application/json', status);
  if (!scene) return json({ error: `no scenario ${name}: ${Object.keys(scenarios).join(', ')}` }, 404);
  if (route === '') return send(page(name), 'text/html; charset=utf-8');
  if (route === 'data/plugin_entry.html') return send(entry, 'text/html; charset=utf-8');
  const path = route.replace('data/plugin/gpu_utilization/', '');
  if (path.startsWith('static/'))
    return send(await readFile(join(STATIC, path.slice(7))), path.endsWith('.css') ? 'text/css' : 'text/javascript');
  if (name === 'broken') return json({ error: 'the log directory cannot be read: permission denied' }, 400);
  const live = (item) => ({ ...item, revision: Math.floor((progress(found ?? scene[0]) * 240) / 2) });
  const found = scene.find((one) => one.summary.id === url.searchParams.get('id')) ?? scene[0];
  if (path === 'runs')
    return json({ version: 1, server_version: '0.0.0-mock', logdir: '/home/ada/logs', tensorboard_runs: ['resnet50-b64', 'resnet50-b64/train'],
      looked_for: '<run>/plugins/gpu_utilization/*/manifest.json', recordings: scene.map((one) => live(one.summary)), problems: [] });
  if (!found) return json({ error: 'no such recording' }, 404);
  if (path === 'recording') {
    const { extent } = found.recording;
    const steps = Math.floor(found.starts.length * progress(found));
    const end = progress(found) < 1 ? extent.start_ns + found.starts[steps] : extent.end_ns;
    return json(live({ ...found.recording, extent: { ...extent, end_ns: end, last_step: steps - 1 } }));
  }
  if (path === 'job') return json({ workers: [], verdict: null, findings: [], since: null });
  if (path === 'window') {
    const reply = found.windows[Number(url.searchParams.get('window'))];
    return reply ? json(reply) : json({ error: 'this recording has no such profiler window' }, 404);
  }
  if (path === 'tiles') return send(tiles(found, url.searchParams), 'application/octet-stream');
  return json({ error: `no route ${path}` }, 404);
});
server.listen(Number(process.argv[2] ?? 0), '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}/acts/`));
