// Makes what reference.json holds: face-api's own networks, run by its own TensorFlow.js on Node's CPU.
//
//   node reference.cjs PACKAGE ASTRONAUT > all.json
//
// PACKAGE is the unpacked npm package, ASTRONAUT scikit-image's photograph as 512 × 512 × 3 bytes. The detectors and the
// landmarks get parts of it in the size that they take, so nothing is resized. reference.json keeps the 30 best
// anchors and every 170th of the SSD detector's, all of the tiny one's above 0.001, and all landmarks.
const fs = require("fs");
const vm = require("vm");

const [folder, astronaut] = process.argv.slice(2);
// The bundle is for browsers: it has an empty stub in place of Node's `util`.
const bundle = fs.readFileSync(`${folder}/dist/face-api.js`, "utf8")
    .replace(/new this\.util\.Text/g, "new Text")
    .replace(/this\.util\.types\.isFloat32Array\(e\)\|\|[^}]*isUint8ClampedArray\(e\)/, "ArrayBuffer.isView(e)");
vm.runInThisContext(`${bundle};globalThis.faceapi = faceapi;`);
const {tf, nets, NetInput} = globalThis.faceapi;

function load(net, name) {
    const tensors = {};
    for (const group of JSON.parse(fs.readFileSync(`${folder}/model/${name}-weights_manifest.json`))) {
        const bytes = Buffer.concat(group.paths.map((path) => fs.readFileSync(`${folder}/model/${path}`)));
        Object.assign(tensors, tf.io.decodeWeights(new Uint8Array(bytes).buffer, group.weights));
    }
    net.loadFromWeightMap(tensors);
    return net;
}

function part(left, top, side) {
    const whole = tf.tensor3d(new Int32Array(fs.readFileSync(astronaut)), [512, 512, 3], "int32");
    return new NetInput([tf.slice3d(whole, [top, left, 0], [side, side, 3])]);
}

(async () => {
    await tf.setBackend("cpu");
    const landmarks = load(nets.faceLandmark68Net, "face_landmark_68_model");
    const tiny = load(nets.tinyFaceDetector, "tiny_face_detector_model");
    const ssd = load(nets.ssdMobilenetv1, "ssd_mobilenetv1_model");
    const cells = tiny.forwardInput(part(48, 0, 416), 416);
    const boxes = await tiny.extractBoxes(cells, {width: 416, height: 416}, 0.001);
    const found = ssd.forwardInput(part(0, 0, 512));
    process.stdout.write(JSON.stringify({
        landmarks: [...landmarks.runNet(part(168, 55, 112)).dataSync()],
        tiny: boxes.map(({row, col, anchor, score, box}) =>
            [(row * 13 + col) * 5 + anchor, score, box.left, box.top, box.right, box.bottom]),
        ssdScores: [...found.scores[0].dataSync()],
        ssdBoxes: [...found.boxes[0].dataSync()], // top, left, bottom, right
    }));
})();
