//! Field case I1: choosing a device never panics, and says what there is.

use specdec::{Backend, DeviceChoice, DeviceError};

#[test]
fn i1_a_backend_that_is_not_there_is_named_with_the_choices_left() {
    let gpus = [
        Backend::Cuda,
        Backend::Wgpu,
        Backend::Vulkan,
        Backend::Metal,
    ];
    for backend in gpus.into_iter().filter(|b| !b.is_compiled()) {
        let error = DeviceChoice::Named(backend, 0)
            .find()
            .expect_err("it is not compiled in");
        assert!(matches!(error, DeviceError::NotCompiled { asked, .. } if asked == backend));
        let text = error.to_string();
        assert!(
            text.contains(backend.name()) && text.contains("flex:0"),
            "{text}"
        );
        assert!(backend.devices().is_empty());
    }
    let error = DeviceChoice::Named(Backend::Flex, 3)
        .find()
        .expect_err("there is one CPU");
    assert!(
        matches!(&error, DeviceError::NotFound { index: 3, found: 1, available, .. }
            if available.contains("flex:0")),
        "{error}"
    );
}

#[test]
fn i1_the_best_device_is_there_and_a_fallback_is_said() {
    let best = DeviceChoice::Best.find().expect("flex is always there");
    let gpu_compiled = [
        Backend::Cuda,
        Backend::Metal,
        Backend::Vulkan,
        Backend::Wgpu,
    ]
    .into_iter()
    .any(Backend::is_compiled);
    assert_eq!(
        best.notice.is_some(),
        gpu_compiled && best.backend == Backend::Flex
    );
    let named = DeviceChoice::Named(Backend::Flex, 0)
        .find()
        .expect("flex is always there");
    assert_eq!((named.backend, named.notice), (Backend::Flex, None));
}
