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

  show({ state, why, version, seconds, tau, curve, progress }) {
    // The head's own: lookup's tokens aren't counted, and without a head there is nothing to show but plain decode.
    const points = curve.map((point) => [point.seconds, point.live ?? point.before]);
    points.push([seconds, tau.live ?? tau.heldout ?? 1]);
    const ago = points.findLast(([at]) => at <= seconds - HOUR_S);
    const [at, before] = ago ?? points[0];
    byId("learning").hidden = false;
    byId("learnt").textContent = tau.live === null && version === null ? ""
      : `head's tau ${points.at(-1)[1].toFixed(2)} now, ${before.toFixed(2)} ${ago ? "an hour ago" : "at first"}`;
    const steps = progress.steps ? `, ${progress.steps} steps, ${progress.until_measured} to the next measurement` : "";
    byId("learn-state").textContent = `${version === null ? "no version yet" : "version " + version}: ${state}${steps}`;
    byId("learn-why").textContent = why ?? "";
    const from = points.filter(([second]) => second >= at), top = Math.max(1.5, ...from.map((point) => point[1]));
    const x = (second) => (300 * (second - at)) / (seconds - at || 1), y = (value) => 48 - (44 * (value - 1)) / (top - 1);
    byId("learn-curve").setAttribute("points", from.map(([second, value]) => `${x(second).toFixed(1)},${y(value).toFixed(1)}`).join(" "));
  },
};
