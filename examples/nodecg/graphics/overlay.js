// All graphics of the broker's overlay, as they are.
const { broker, program, project } = nodecg.bundleConfig;
const frame = document.createElement("iframe");
frame.src = `${broker}/overlay/?${new URLSearchParams({ program, project })}`;
frame.style.cssText = "border: 0; width: 100vw; height: 100vh";
document.body.append(frame);
