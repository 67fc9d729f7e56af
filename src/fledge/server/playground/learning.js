// What a server that learns has reached: its tau now and an hour ago, and the curve.

const EVERY_MS = 5000;
const HOUR_S = 3600;

const learning = {
  timer: 0,

  async follow() {
    clearTimeout(this.timer);
    try {
      const response = await fetch("v1/learn", { headers: headers() });
      if (response.ok) this.show(await response.json());
    } catch { /* the next look may succeed */ }
    this.timer = setTimeout(() => this.follow(), EVERY_MS);
  },

  show({ state, version, seconds, tau, curve }) {
    const points = curve.map((point) => [point.seconds, point.live ?? point.before]);
    points.push([seconds, tau.live ?? tau.heldout ?? 1]);
    const ago = points.findLast(([at]) => at <= seconds - HOUR_S);
    const [at, before] = ago ?? points[0];
    byId("learning").hidden = false;
    byId("learnt").textContent = `tau ${points.at(-1)[1].toFixed(2)} now, ${before.toFixed(2)} ${ago ? "an hour ago" : "at first"}`;
    byId("learn-state").textContent = `${state}, ${version === null ? "no version yet" : "version " + version}`;
    const from = points.filter(([second]) => second >= at), top = Math.max(1.5, ...from.map((point) => point[1]));
    const x = (second) => (300 * (second - at)) / (seconds - at || 1), y = (value) => 48 - (44 * (value - 1)) / (top - 1);
    byId("learn-curve").setAttribute("points", from.map(([second, value]) => `${x(second).toFixed(1)},${y(value).toFixed(1)}`).join(" "));
  },
};
