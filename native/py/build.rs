//! Stamps the library with the moment at which it is built, which names the build, and with what makes images.

use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs};

fn main() {
    // A builder who wants equal builds says the moment: https://reproducible-builds.org/specs/source-date-epoch/
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    for path in [
        "build.rs",
        "Cargo.toml",
        "src",
        "../core/src",
        "../gateway/src",
        "../server/src",
        "../../Cargo.lock",
        "../../python/broker/__init__.py",
    ] {
        println!("cargo::rerun-if-changed={path}");
    }
    let seconds = env::var("SOURCE_DATE_EPOCH").map_or_else(
        |_| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.expect("a clock after 1970").as_secs()
        },
        |text| {
            text.parse()
                .expect("SOURCE_DATE_EPOCH is a number of seconds")
        },
    );
    println!("cargo::rustc-env=BROKER_BUILT_S={seconds}");
    let crates = ["blurhash", "fast_image_resize", "thumbhash"]
        .map(|name| format!("{name} {}", locked_version(name)));
    println!("cargo::rustc-env=IMAGE_CRATES={}", crates.join(" "));
}

/// The version of a package in the lock file.
fn locked_version(package: &str) -> String {
    let locked = fs::read_to_string("../../Cargo.lock").expect("the lock file");
    let start = format!("name = \"{package}\"\nversion = \"");
    let (_, rest) = locked.split_once(&start).expect("a package of ours");
    rest.split('"').next().unwrap_or_default().into()
}
